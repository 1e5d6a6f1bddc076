"""An imitated orchagent: it does with SONiC's databases what the real one is documented to do.

It learns of CONFIG_DB's ACL tables, types and rules by keyspace notifications, has room for a
number of rules, writes the outcome of each into STATE_DB, and forwards packets by the active rules.
It can be slow, refuse next hops without an ARP entry, or stop. There is no ASIC behind it.
"""

from __future__ import annotations

import sys
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import redis

from heddle_agent.conformance import ADDRESSES, SPINES, uplink
from heddle_agent.fib import Batch, Choice, Failure, Fib, Group, Link, NextHop, Packet, Steering
from heddle_agent.fib.sonic import Exit, SonicFib, socket_of
from tests.support.fib_linux import as_ipv6
from tests.support.redis_server import NEVER, RedisServer
from tests.support.waiting import PATIENCE, wait_until

EXITS = {
    hop.port: Exit(f"Ethernet{4 * number}", f"10.1.{number}.1") for number, hop in enumerate(SPINES)
}
BARRIER = "HEDDLE_TEST_BARRIER"
PREFIXES = ("ACL_TABLE_TYPE|", "ACL_TABLE|", "ACL_RULE|")
MOST = 1000
"""Most keys that it processes at once."""


@dataclass
class Conduct:
    """How it behaves."""

    room: int = 100_000
    """Rules that the chip has room for."""
    arp: set[str] = field(default_factory=lambda: {one.redirect for one in EXITS.values()})
    """Next hops that have an ARP entry."""
    awake: threading.Event = field(default_factory=threading.Event)
    """While this is cleared, it does nothing."""


class Orchagent:
    """One orchagent at a Redis; ``with`` runs it."""

    def __init__(
        self,
        connect: Callable[[int], Any],
        conduct: Conduct | None = None,
        *,
        addresses: Mapping[str, str] = ADDRESSES,
    ) -> None:
        """Start; ``addresses`` are those of the packets that it forwards."""
        self._addresses = addresses
        self.conduct = conduct or Conduct()
        self.conduct.awake.set()
        self._config, self._state = connect(4), connect(6)
        self._counters = connect(2)
        self._config.config_set("notify-keyspace-events", "AKE")
        self._state.hset("ACL_STAGE_CAPABILITY_TABLE|INGRESS", "action_list", ACTIONS)
        self.tables: dict[str, dict[str, str]] = {}
        self.types: dict[str, dict[str, str]] = {}
        self.rules: dict[str, dict[str, str]] = {}
        """Active rules, by table and name."""
        self.down: set[str] = set()
        """Ports without a carrier."""
        self._seen = 0
        self._over = threading.Event()
        self._heard = self._config.pubsub()
        self._heard.psubscribe("__keyspace@4__:*")
        self._heard.get_message(timeout=PATIENCE)
        for prefix in PREFIXES:
            self._take(list(self._config.scan_iter(match=f"{prefix}*")))
        self._thread = threading.Thread(target=self._run, name="orchagent")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.conduct.awake.set()
        self._thread.join()
        self._heard.close()

    def settle(self) -> None:
        """Wait until it has done all that it was told so far."""
        asked = int(self._config.incr(BARRIER))
        wait_until(lambda: self._seen >= asked, "orchagent")

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                keys, barriers = self._hear()
                self.conduct.awake.wait()  # while it sleeps, what it heard is not done
                self._take(keys)
                self._seen += barriers
            except redis.exceptions.RedisError:
                self._over.wait(0.05)

    def _hear(self) -> tuple[list[str], int]:
        """Return changed keys, each once, in the order of their first change, and barriers."""
        keys, barriers, timeout = dict[str, None](), 0, 0.05
        while len(keys) < MOST and (message := self._heard.get_message(timeout=timeout)):
            timeout = 0.0
            key = str(message["channel"]).partition(":")[2]
            if key == BARRIER:
                barriers += 1
            elif message["type"] == "pmessage" and key.startswith(PREFIXES):
                keys[key] = None
        return list(keys), barriers

    def _take(self, keys: Sequence[str]) -> None:
        """Do what CONFIG_DB now says under some keys."""
        with self._config.pipeline(transaction=False) as asked:
            for key in keys:
                asked.hgetall(key)
            found = asked.execute()
        with self._state.pipeline(transaction=False) as told:
            for key, fields in zip(keys, found, strict=True):
                kind, _, name = key.partition("|")
                if kind == "ACL_TABLE_TYPE":
                    _put(self.types, name, fields)
                elif kind == "ACL_TABLE":
                    _put(self.tables, name, fields)
                else:
                    self._rule(name, fields, told)
            self._tell_room()
            told.execute()

    def _rule(self, name: str, fields: dict[str, str], told: Any) -> None:
        status = f"ACL_RULE_TABLE|{name}"
        if not fields:
            self.rules.pop(name, None)
            told.delete(status)
        elif self.rules.get(name) == fields:
            return
        elif self._allowed(name, fields) and self._has_room(name):
            self.rules[name] = fields
            told.hset(status, "status", "Active")
        else:
            self.rules.pop(name, None)
            told.hset(status, "status", "Inactive")

    def _has_room(self, name: str) -> bool:
        return name in self.rules or len(self.rules) < self.conduct.room

    def _tell_room(self) -> None:
        left = max(0, self.conduct.room - len(self.rules))
        self._counters.hset("CRM:ACL_TABLE_STATS:0x7000000000001", ROOM, left)

    def _allowed(self, name: str, fields: Mapping[str, str]) -> bool:
        table = self.tables.get(name.partition("|")[0])
        if table is None:
            return False
        known = self.types.get(table["type"], {})
        matches, actions = (known.get(f, "").split(",") for f in ("MATCHES@", "ACTIONS@"))
        asked = fields.keys() - {"PRIORITY"}
        redirect = fields.get("REDIRECT_ACTION")
        return (
            asked <= {*matches, *actions}
            and len(asked & set(actions)) == 1
            and 0 <= int(fields["PRIORITY"]) <= 9999
            and (redirect is None or redirect in self.conduct.arp)
        )

    def forward(self, packet: Packet) -> NextHop | None:
        """Return where a packet leaves; None if it is lost."""
        hops = {one.redirect: hop for hop, one in zip(SPINES, EXITS.values(), strict=True)}
        found = [
            fields
            for name, fields in self.rules.items()
            if self.tables[name.partition("|")[0]]["ports@"]
            and _matches(fields, packet, self._addresses)
        ]
        best = max(found, key=lambda fields: int(fields["PRIORITY"]), default={})
        if redirect := best.get("REDIRECT_ACTION"):
            lost = redirect.partition("@")[2] in self.down
            return None if lost else hops[redirect]
        up = [hop for hop in SPINES if EXITS[hop.port].interface not in self.down]
        return up[zlib.crc32(repr(packet).encode()) % len(up)] if up else None


ACTIONS = "PACKET_ACTION,REDIRECT_ACTION,MIRROR_INGRESS_ACTION"
ROOM = "crm_stats_acl_entry_available"


def _put(kept: dict[str, dict[str, str]], name: str, fields: dict[str, str]) -> None:
    if fields:
        kept[name] = fields
    else:
        kept.pop(name, None)


def _matches(fields: Mapping[str, str], packet: Packet, addresses: Mapping[str, str]) -> bool:
    source, destination = addresses[packet.source], addresses[packet.destination]
    ipv6 = ":" in source
    family = (
        ("SRC_IPV6", "DST_IPV6", "NEXT_HEADER") if ipv6 else ("SRC_IP", "DST_IP", "IP_PROTOCOL")
    )
    if not fields.keys() & set(family):  # a rule of the other family
        return False
    bits = 128 if ipv6 else 32
    wanted = {
        family[0]: f"{source}/{bits}",
        family[1]: f"{destination}/{bits}",
        family[2]: "17",
        "L4_SRC_PORT": str(packet.source_port),
        "L4_DST_PORT": str(packet.destination_port),
    }
    return all(fields.get(name, value) == value for name, value in wanted.items())


def play(socket: str) -> None:
    """Be the orchagent of a Redis, in a process of its own, until standard input ends."""
    with Orchagent(socket_of(Path(socket))):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.read()


class OverIpv6(SonicFib):
    """The SONiC backend; IPv4 addresses in batches are replaced by IPv6 ones."""

    def apply(self, batch: Batch) -> Sequence[Failure]:
        """Implement ``Fib.apply`` with IPv6 addresses."""
        told = {nic: as_ipv6(address) for nic, address in batch.addresses.items()}
        return super().apply(replace(batch, addresses=told))


class SonicSwitch:
    """A conformance bench: a Redis, an imitated orchagent, and the backend."""

    def __init__(
        self,
        folder: Path,
        table_size: int = 0,
        *,
        options: Sequence[str] = NEVER,
        ipv6: bool = False,
    ) -> None:
        self._addresses = {nic: as_ipv6(a) if ipv6 else a for nic, a in ADDRESSES.items()}
        self._ipv6 = ipv6
        self.server = RedisServer(folder, *options).start()
        self._opened: list[Any] = []
        self.orchagent = Orchagent(self.connect, addresses=self._addresses)
        self.orchagent.__enter__()
        self.sonic = self.open(table_size)
        self.fib: Fib = self.sonic

    def connect(self, number: int) -> Any:
        """Return a connection to a database."""
        opened = socket_of(self.server.socket)(number)
        self._opened.append(opened)
        return opened

    def open(
        self, table_size: int = 0, patience: float = PATIENCE, without: NextHop | None = None
    ) -> SonicFib:
        """Return the backend of an agent that starts; one link may have no address."""
        exits = {port: one for port, one in EXITS.items() if not without or port != without.port}
        ports = [one.interface for one in EXITS.values()]
        kind = OverIpv6 if self._ipv6 else SonicFib
        return kind(exits, self.connect, ports=ports, table_size=table_size, patience=patience)

    def play(self) -> None:
        """Start a new orchagent, as after a restart of the switch's services."""
        self.orchagent.__exit__()
        self.orchagent = Orchagent(self.connect, addresses=self._addresses)
        self.orchagent.__enter__()

    def close(self) -> None:
        """End everything."""
        self.orchagent.__exit__()
        for opened in self._opened:
            opened.close()
        self.server.close()

    def where(self, packet: Packet) -> NextHop | None:
        """Return where a packet leaves by the rules that orchagent has made active."""
        self.orchagent.settle()
        return self.orchagent.forward(packet)

    def carry(self, packet: Packet, number: int, size: int) -> None:
        """Do nothing, because nothing counts packets here."""

    def links(self, down: frozenset[Link], choices: dict[Group, Choice]) -> None:
        """Take and restore the carriers of ports; then let the agent steer."""
        lost = {EXITS[hop.port].interface for at, hop in enumerate(SPINES) if uplink(at) in down}
        self.orchagent.down = lost
        self.fib.steer(Steering(choices, down))


if __name__ == "__main__":
    play(sys.argv[1])
