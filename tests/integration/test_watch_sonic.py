"""An agent on a SONiC switch leaves ports that SONiC's databases report as down.

The kernel's interfaces keep their carrier all the time, so the agent learns of it from Redis alone.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from heddle_agent.conformance import ADDRESSES, SPINES
from heddle_agent.fib import Batch, Group, Match
from heddle_agent.fib.sonic import Exit, schema
from heddle_agent.watch.sonic import SonicPortReports
from tests.support import fib_linux
from tests.support.orchagent import EXITS, SonicSwitch
from tests.support.redis_server import ALWAYS, NEVER, RedisServer
from tests.support.waiting import PATIENCE, wait_until

CHANNEL = Exit("PortChannel1", "10.1.2.1")
AWAY = "port states not read"
MATCHES: list[Match] = [("nic0", f"far{number}", 0, 0) for number in range(2)]


@dataclass
class Running:
    """A running agent with entries to the first spine and to a portchannel, both with a backup."""

    switch: SonicSwitch
    log: Path

    def __post_init__(self) -> None:
        self.appl: Any = self.switch.connect(schema.APPL_DB)
        self._config: Any = self.switch.connect(schema.CONFIG_DB)

    def says(self, interface: str, **fields: str) -> None:
        """Set fields of a port in the switch's database."""
        self.appl.hset(schema.port_key(interface), mapping=fields)

    def leads(self) -> list[str]:
        """Return where the rule of each entry redirects to, or an empty string if nowhere."""
        keys = [key for key in self._config.keys("ACL_RULE|*") if self._config.exists(key)]
        rules = {self._config.hget(key, "DST_IP"): key for key in keys}
        found = [rules[f"{ADDRESSES[match[1]]}/32"] for match in MATCHES]
        return [self._config.hget(key, schema.REDIRECT) or "" for key in found]

    def wait(self, *wanted: str) -> None:
        """Wait until the entries lead there."""
        wait_until(lambda: self.leads() == [*wanted], f"{wanted}, not {self.leads()}")

    def logged(self, words: str) -> int:
        """Return how many lines of the agent's log contain the words."""
        return sum(words in line for line in self.log.read_text().splitlines())

    def missed(self) -> int:
        """Return how often the agent found Redis away, not only slow as on a busy machine."""
        lines = [line for line in self.log.read_text().splitlines() if AWAY in line]
        return sum("imeout" not in line for line in lines)


FIRST, SECOND = (EXITS[hop.port].redirect for hop in SPINES[:2])


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """An agent that takes over two entries and has no controller."""
    fib_linux.needed()
    fib_linux.sweep()
    switch = SonicSwitch(tmp_path / "redis", options=ALWAYS)
    space = fib_linux.Space(f"hdfib.{os.getpid()}.{secrets.token_hex(2)}.sonic")
    try:
        lines = ["link add PortChannel1 type veth peer name far9"]
        lines += ["link set PortChannel1 alias spine2,0 up", "link set far9 up"]
        lines += [f"addr add {CHANNEL.address[:-1]}0/31 dev PortChannel1"]
        for number, hop in enumerate(SPINES[:2]):
            port = EXITS[hop.port]
            lines += [f"link add {port.interface} type veth peer name far{number}"]
            lines += [f"addr add {port.address[:-1]}0/31 dev {port.interface}"]
            lines += [f"link set {port.interface} alias {hop.node},{hop.key} up"]
            lines += [f"link set far{number} up"]
        space.ip(*lines)
        switch.orchagent.conduct.arp.add(CHANNEL.redirect)
        fib = switch.open()
        fib._exits[SPINES[2].port] = CHANNEL
        groups = [Group(SPINES[0], SPINES[1]), Group(SPINES[2], SPINES[1])]
        sets = dict(zip(MATCHES, groups, strict=True))
        assert not fib.apply(Batch(sets, addresses=ADDRESSES))
        fib.close()
        log = tmp_path / "log"
        command = [
            *("ip", "netns", "exec", space.name),
            *(str(Path(sys.executable).with_name("heddle-agent")), "run"),
            *("--fabric=fabrics/f1", "--switch=leaf0", "--controller=127.0.0.1:1"),
            *("--fib=sonic", f"--sonic-redis={switch.server.socket}"),
            *("--interfaces=alias", "--log-format=json"),
        ]
        with (
            log.open("w") as written,
            subprocess.Popen(command, stderr=written, stdout=written) as agent,
        ):
            made = Running(switch, log)
            wait_until(lambda: made.logged("agent started"), "the agent")
            yield made
            agent.terminate()
        assert agent.returncode == 0, log.read_text()
    finally:
        switch.close()
        space.remove()


def test_a_port_that_is_down_is_left_and_taken_again(running: Running) -> None:
    """An entry leaves a port whose oper or admin status is down, and returns; others stay."""
    running.wait(FIRST, CHANNEL.redirect)
    for field in ("oper_status", "admin_status"):
        running.says("Ethernet0", admin_status="up", oper_status="up", flap_count="1")
        running.wait(FIRST, CHANNEL.redirect)
        running.says("Ethernet0", **{field: "down"})
        running.wait(SECOND, CHANNEL.redirect)
    running.says("Ethernet0", admin_status="up")
    running.wait(FIRST, CHANNEL.redirect)
    assert running.logged("link down") == running.logged("link up") == 2


def test_ports_that_are_lost_together_are_left_together(running: Running) -> None:
    """Ports lost together are left together; without any next hop, the underlay forwards.

    A portchannel has a table of its own in the database.
    """
    with running.appl.pipeline() as pipe:
        pipe.hset("LAG_TABLE:PortChannel1", "oper_status", "down")
        pipe.hset("PORT_TABLE:Ethernet4", "oper_status", "down")
        pipe.execute()
    running.wait(FIRST, "")


def test_what_redis_does_not_tell_is_read_all_the_same(running: Running) -> None:
    """The agent finds a port's state by reading if Redis sends no notifications.

    No SONiC switches them off.
    """
    running.appl.config_set("notify-keyspace-events", "")
    running.says("Ethernet0", oper_status="down")
    running.wait(SECOND, CHANNEL.redirect)


def test_a_port_that_the_databases_forget_is_the_kernels(running: Running) -> None:
    """If a port's key is gone, as when services restart, the kernel's carrier counts."""
    running.says("Ethernet0", oper_status="down")
    running.wait(SECOND, CHANNEL.redirect)
    running.appl.delete("PORT_TABLE:Ethernet0")
    running.wait(FIRST, CHANNEL.redirect)


def test_a_redis_that_comes_back_is_heard_again(running: Running) -> None:
    """While Redis is away nothing changes, with one message; then its states count again."""
    running.says("Ethernet0", oper_status="down")
    running.wait(SECOND, CHANNEL.redirect)
    running.switch.server.kill()
    wait_until(lambda: running.logged(AWAY), "the agent to miss Redis")
    assert running.logged("link up") == 0
    running.switch.server.start("--notify-keyspace-events", "AKE")
    running.switch.play()
    running.says("Ethernet0", oper_status="up")
    running.wait(FIRST, CHANNEL.redirect)
    assert running.missed() <= 1


async def test_a_watch_ends_whenever_it_is_cancelled(tmp_path: Path) -> None:
    """A watch ends at once when cancelled: connecting, subscribing, reading or waiting."""
    server = RedisServer(tmp_path, *NEVER).start()

    async def goes_on(steps: int) -> bool:
        watch = SonicPortReports(server.socket).watch(["Ethernet0"], lambda _name, _up: None)
        running = asyncio.create_task(watch)
        for _ in range(steps):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running], timeout=PATIENCE)
        return not running.done()

    try:
        assert not any(await asyncio.gather(*map(goes_on, range(60))))
    finally:
        server.close()
