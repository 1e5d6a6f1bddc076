"""The agent's own process in a network namespace, with links that fail in every way.

Two switches are joined by two cables. The agent runs on the near one; the far one only answers.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from tests.support.needs import missing
from tests.support.waiting import until

AGENT = Path(sys.executable).with_name("heddle-agent")
DROP_ALL, DROP_SOME = "drop", "meta random < 800000000 drop"


class Pair:
    """The namespaces of the two switches."""

    def __init__(self, *, ipv6: bool) -> None:
        self.ipv6 = ipv6
        mark = f"hw{os.getpid() % 100_000}"
        self.near, self.far = f"{mark}n", f"{mark}f"

    def build(self) -> None:
        """Make both namespaces and two cables, with the addresses and aliases that agents read."""
        for space in (self.near, self.far):
            run("ip", "netns", "add", space)
            kept = ("net.ipv6.conf.all.keep_addr_on_down=1", "net.ipv6.conf.default.accept_dad=0")
            run("ip", "netns", "exec", space, "sysctl", "-qw", *kept)
        for number in range(2):
            self.plug(number, f"up{number}")

    def plug(self, number: int, name: str) -> None:
        """Add a cable whose near end has this interface name."""
        names = (name, f"down{number}")
        run(
            *("ip", "link", "add", names[0], "netns", self.near, "type", "veth"),
            *("peer", "name", names[1], "netns", self.far),
        )
        self.addresses("add", number, 2 * number, name)
        for space, end in ((self.near, names[0]), (self.far, names[1])):
            alias = f"spine{number},0" if space == self.near else f"leaf0,{number}"
            run("ip", "-n", space, "link", "set", end, "alias", alias, "up")

    def addresses(self, what: str, number: int, first: int, name: str = "") -> None:
        """Add addresses to both ends of a cable, or delete them: ``first`` and the one after."""
        ends = ((self.near, name or f"up{number}", first), (self.far, f"down{number}", first + 1))
        for space, end, own in ends:
            address = f"{self.address(own)}/{127 if self.ipv6 else 31}"
            run("ip", "-n", space, "address", what, address, "dev", end)

    def address(self, number: int) -> str:
        """Return the address of a cable's end: near ends have even numbers, far ends odd ones."""
        return f"fd00:c::{number}" if self.ipv6 else f"198.18.0.{number}"

    def remove(self) -> None:
        """Remove both namespaces and all that is in them."""
        for space in (self.near, self.far):
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)

    def unplug(self, number: int) -> None:
        """Take both ends of a cable away, as reloading a driver does."""
        run("ip", "-n", self.near, "link", "delete", f"up{number}")

    def limit(self, number: int, rate: str) -> None:
        """Limit the rate at which the near end of a cable sends."""
        where = ("dev", f"up{number}", "root")
        limits = ("tbf", "rate", rate, "burst", "5kb", "limit", "100kb")
        run("ip", "netns", "exec", self.near, "tc", "qdisc", "add", *where, *limits)

    def carrier(self, number: int, *, up: bool) -> None:
        """Take the carrier of a cable away at the far end, or give it back."""
        state = "up" if up else "down"
        run("ip", "-n", self.far, "link", "set", f"down{number}", state)

    def route(self, number: int, *, there: bool = True) -> None:
        """Add a route to networks beyond the far switch over a cable, or delete it."""
        gateway = ("via", self.address(2 * number + 1), "dev", f"up{number}")
        what = "add" if there else "delete"
        beyond = "fd00:a::/64" if self.ipv6 else "10.9.0.0/16"
        run("ip", "-n", self.near, "route", what, beyond, *gateway)

    def lose(self, number: int, what: str) -> None:
        """Drop packets that arrive at the far end of a cable; the carrier stays."""
        hook = f"type filter hook ingress device down{number} priority 0"
        table = f"table netdev t {{ chain c {{ {hook}; {what}; }}; }}"
        run("ip", "netns", "exec", self.far, "nft", table)

    def heal(self) -> None:
        """Stop dropping packets."""
        run("ip", "netns", "exec", self.far, "nft", "delete", "table", "netdev", "t")


def run(*words: str) -> str:
    """Return what a command prints; fail if the command fails."""
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


def answers(pair: Pair) -> int:
    """Return how many echo replies the near switch's kernel has received."""
    if pair.ipv6:
        told = run("ip", "netns", "exec", pair.near, "cat", "/proc/net/snmp6")
        return int(dict(map(str.split, told.splitlines()))["Icmp6InEchoReplies"])
    told = run("ip", "netns", "exec", pair.near, "cat", "/proc/net/snmp")
    names, counts = (line.split() for line in told.splitlines() if line.startswith("Icmp:"))
    return int(counts[names.index("InEchoReps")])


@pytest.fixture(params=["ipv4", "ipv6"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Both switches, over IPv4 and over IPv6; they are removed at the end."""
    if os.geteuid() != 0:
        missing("network namespaces need root")
    for program in ("ip", "nft"):
        if shutil.which(program) is None:
            missing(f"{program}: apt-get install iproute2 nftables")
    one = Pair(ipv6=request.param == "ipv6")
    try:
        one.build()
        yield one
    finally:
        one.remove()


class Running:
    """An agent's process and the lines that it has logged."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[dict[str, object]] = []
        self.reading = asyncio.create_task(self._read())

    def links(self, number: int) -> list[tuple[str, str]]:
        """Return the events of the link to a spine in order, each with its reason."""
        name = f"leaf0,spine{number},0"
        return [
            (str(line["event"]), str(line["reason"]))
            for line in self.lines
            if line.get("link") == name and "reason" in line
        ]

    def events(self) -> list[str]:
        """Return all events that it has logged."""
        return [str(line["event"]) for line in self.lines]

    async def says(self, number: int, event: str, reason: str) -> None:
        """Wait until this event and reason are the last ones of a link."""
        await until(lambda: self.links(number)[-1:] == [(event, reason)], f"{event}: {reason}")

    async def has_said(self, number: int, event: str, *, times: int = 1) -> None:
        """Wait until an event of a link was logged so often."""
        wanted = (event, f"leaf0,spine{number},0")
        lines = self.lines
        await until(
            lambda: [(line["event"], line.get("link")) for line in lines].count(wanted) >= times,
            event,
        )

    async def is_answered(self, pair: Pair) -> None:
        """Wait until some probes were answered: silence from the start would prove nothing."""
        await until(lambda: answers(pair) > 10, "answers to probes")

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(json.loads(line))


@asynccontextmanager
async def agent(pair: Pair, *options: str) -> AsyncIterator[Running]:
    """Run the agent of leaf0 without a controller; it must log JSON and exit with 0."""
    process = await asyncio.create_subprocess_exec(
        *("ip", "netns", "exec", pair.near, str(AGENT), "run", "--fabric=fabrics/f1"),
        *("--switch=leaf0", "--controller=127.0.0.1:9", "--probe-milliseconds=20", *options),
        stderr=asyncio.subprocess.PIPE,
    )
    running = Running(process)
    try:
        await until(lambda: "agent started" in running.events(), "its start")
        yield running
        process.terminate()
        await running.reading
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        await running.reading
        await process.wait()


@contextmanager
def flood(pair: Pair, number: int) -> Iterator[None]:
    """Send UDP at 40 Mbit/s over a cable, twice the speed in its alias, answered or not."""
    script = (
        "import socket, time\n"
        f"s = socket.socket(socket.AF_INET{'6' * pair.ipv6}, socket.SOCK_DGRAM)\n"
        "while True:\n"
        f"    [s.sendto(bytes(1400), ({pair.address(2 * number + 1)!r}, 9)) for _ in range(18)]\n"
        "    time.sleep(0.005)\n"
    )
    command = ["ip", "netns", "exec", pair.near, sys.executable, "-c", script]
    with subprocess.Popen(command) as sender:
        try:
            yield
        finally:
            sender.kill()


async def test_carriers_lost_at_once_are_both_seen(pair: Pair) -> None:
    """Two carriers that go at once are both seen, though the kernel may tell of the second late."""
    async with agent(pair, "--interfaces=alias") as one:
        for number in range(2):
            pair.carrier(number, up=False)
        for number in range(2):
            await one.says(number, "link down", "carrier")
        for number in range(2):
            pair.carrier(number, up=True)
        for number in range(2):
            await one.says(number, "link up", "carrier")
            assert [event for event, _ in one.links(number)] == ["link down", "link up"]


async def test_a_link_that_swallows_packets_is_down(pair: Pair) -> None:
    """A link with carrier whose probes do not come back is down; the other link is not affected."""
    async with agent(pair, "--interfaces=alias") as one:
        await one.is_answered(pair)
        pair.lose(0, DROP_ALL)
        await one.says(0, "link down", "probe")
        pair.heal()
        await one.says(0, "link up", "carrier")
        assert one.links(1) == []


async def test_a_link_that_comes_and_goes_is_kept_down(pair: Pair) -> None:
    """After a second loss the link is kept down for a while, and the agent logs that."""
    async with agent(pair, "--interfaces=alias") as one:
        for _ in range(2):
            pair.carrier(0, up=False)
            await one.says(0, "link down", "carrier")
            pair.carrier(0, up=True)
            await until(lambda: one.links(0)[-1][0] != "link down", "its return")
        flaps = [line for line in one.lines if line["event"] == "link flaps: it is kept down"]
        assert [line["reason"] for line in flaps] == ["flap-damped"]
        await one.says(0, "link up", "carrier")


async def test_a_link_that_loses_some_is_grey(pair: Pair) -> None:
    """A link that loses some packets stays in use, and the agent logs the share that it loses."""
    async with agent(pair, "--interfaces=alias") as one:
        await one.is_answered(pair)
        pair.lose(1, DROP_SOME)
        await until(lambda: ("link loses packets", "grey") in one.links(1), "greyness")
        (line, *_) = [line for line in one.lines if line["event"] == "link loses packets"]
        assert isinstance(line["loss_ratio"], float)
        assert 0 < line["loss_ratio"] < 1
        assert one.links(0) == []


@pytest.mark.parametrize("name", ["up0", "swp7s0"])
async def test_an_interface_made_anew_is_taken_up(pair: Pair, name: str) -> None:
    """An interface that is made again, by a driver or a breakout, is the same link.

    The agent knows it by its name or by its alias.
    """
    async with agent(pair, "--interfaces=alias") as one:
        await one.is_answered(pair)
        pair.unplug(0)
        await one.says(0, "link down", "carrier")
        pair.plug(0, name)
        await until(lambda: "link taken up on a new interface" in one.events(), "the new one")
        await until(lambda: one.links(0)[-1:] == [("link up", "carrier")], "its return")
        pair.lose(0, DROP_ALL)
        await one.says(0, "link down", "probe")
        pair.heal()
        assert one.links(1) == []


async def test_an_interface_may_get_another_name(pair: Pair) -> None:
    """A renamed interface is the same link: its carrier is still watched."""
    async with agent(pair, "--interfaces=alias") as one:
        run("ip", "-n", pair.near, "link", "set", "up0", "down")
        await one.says(0, "link down", "carrier")
        run("ip", "-n", pair.near, "link", "set", "up0", "name", "swp1", "up")
        await one.says(0, "link up", "carrier")
        pair.carrier(0, up=False)
        await one.says(0, "link down", "carrier")


async def test_a_link_may_get_other_addresses(pair: Pair) -> None:
    """A link is probed at the addresses that its interface has now, and is up while they answer.

    So is a link that had no address when the agent started, and one whose addresses change while
    an old one is still there.
    """
    pair.addresses("delete", 1, 2)
    async with agent(pair, "--interfaces=alias") as one:
        await one.is_answered(pair)
        pair.addresses("delete", 0, 0)
        await one.says(0, "link down", "probe")
        pair.addresses("add", 0, 4)
        await one.says(0, "link up", "carrier")
        pair.addresses("add", 0, 6)
        pair.addresses("delete", 0, 4)
        pair.addresses("add", 1, 8)
        for number, times in ((0, 2), (1, 1)):
            await one.has_said(number, "neighbour has another address", times=times)
        pair.lose(0, DROP_ALL)
        await one.says(0, "link down", "probe")
        before = answers(pair)
        await until(lambda: answers(pair) > before + 10, "answers over the other link")
        pair.heal()
        pair.lose(1, DROP_ALL)
        await one.says(1, "link down", "probe")


async def test_a_bridge_that_an_interface_leaves_takes_nothing_with_it(pair: Pair) -> None:
    """Leaving a bridge does not end a link, though the kernel's message looks much like it."""
    async with agent(pair, "--interfaces=alias") as one:
        near = ("ip", "-n", pair.near, "link")
        run(*near, "add", "br0", "type", "bridge")
        run(*near, "set", "up0", "master", "br0")
        run(*near, "set", "up0", "nomaster")
        pair.carrier(1, up=False)  # the kernel tells of this after the rest
        await one.says(1, "link down", "carrier")
        assert "link taken up on a new interface" not in one.events()
        # A bridge answers no probes, so the link may go and come by them.
        assert ("link down", "carrier") not in one.links(0)


async def test_a_link_slower_than_it_should_be_is_told(pair: Pair) -> None:
    """A link that sends a quarter of its speed while packets wait is reported slow, no other is.

    Unit tests check a link at its full speed: a busy machine may not manage to send so much.
    """
    for number in range(2):
        alias = f"spine{number},0,0.02"  # 20 Mbit/s
        run("ip", "-n", pair.near, "link", "set", f"up{number}", "alias", alias)
    pair.limit(0, "5mbit")
    probes = "--probe-milliseconds=0"  # probes would be lost in the full queue
    async with agent(pair, "--interfaces=alias", probes) as one:
        with flood(pair, 0), flood(pair, 1):
            await one.says(0, "link is slower than it should be", "slow")
        # There may be more lines: on a busy machine the flood may pause.
        line, *_ = [line for line in one.lines if line.get("reason") == "slow"]
        assert isinstance(line["rate_ratio"], float)
        assert 0 < line["rate_ratio"] < 0.4
        assert one.links(1) == []


async def test_links_may_stand_in_a_file(pair: Pair, tmp_path: Path) -> None:
    """A file may list interfaces by name; one marked as not probed is judged by its carrier."""
    file = tmp_path / "links.json"
    links = {"up0": {"neighbour": "spine0"}, "up1": {"neighbour": "spine1", "probe": False}}
    file.write_text(json.dumps(links))
    async with agent(pair, f"--interfaces={file}") as one:
        await one.is_answered(pair)
        for number in range(2):
            pair.lose(number, DROP_ALL)
            if number == 1:
                pair.carrier(1, up=False)
            await one.says(number, "link down", ["probe", "carrier"][number])
            pair.heal()


def test_probes_need_a_capability(pair: Pair) -> None:
    """Without CAP_NET_RAW the error names the capability, and the option that turns probes off."""
    if shutil.which("setpriv") is None:
        missing("setpriv: apt-get install util-linux")
    said = refused(pair, "--interfaces=alias", before=("setpriv", "--bounding-set=-net_raw"))
    assert "probing links needs CAP_NET_RAW" in said
    assert "--probe-milliseconds 0" in said


def refused(pair: Pair, *options: str, before: tuple[str, ...] = ()) -> str:
    """Return what an agent says that refuses to start."""
    done = subprocess.run(
        [
            *("ip", "netns", "exec", pair.near, *before, str(AGENT), "run", "--fabric=fabrics/f1"),
            *("--switch=leaf0", "--controller=127.0.0.1:9", *options),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    return done.stderr


async def test_a_link_is_up_again_once_routing_is_back(pair: Pair) -> None:
    """A link that had routes counts as up again only once a route uses it.

    The other cable never had a route beyond its neighbour, so its carrier is enough.
    """
    pair.route(0)
    async with agent(pair, "--interfaces=alias", "--log-level=debug") as one:
        await one.has_said(0, "routing uses link")
        for number in range(2):
            pair.carrier(number, up=False)
            await one.says(number, "link down", "carrier")
        pair.route(0, there=False)
        for number in range(2):
            pair.carrier(number, up=True)
        await one.says(1, "link up", "carrier")
        await one.has_said(0, "link awaits routing")
        assert [event for event, _ in one.links(0)] == ["link down"]
        pair.route(0)
        await one.says(0, "link up", "carrier")
