"""A cluster of three masters, and a replica of the one that has a store's keys."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from redis.crc import key_slot

from tests.support.ports import free_port
from tests.support.redis_server import ALWAYS, RedisServer
from tests.support.waiting import PATIENCE, wait_until

SLOTS = 16384
MASTERS = 3
DOWN_MILLISECONDS = 600_000
"""Time without an answer after which the others consider a master dead.

It is longer than any test, so a master that is only slow on a busy machine is not replaced.
"""
MIGRATE_MILLISECONDS = f"{1000 * PATIENCE:.0f}"
"""Time limit for moving one key."""


class Cluster:
    """A cluster of three masters and a replica. Use it as ``with``.

    It is entered when every slot has a master and the replica follows its own.
    """

    def __init__(self, folder: Path, name: str = "heddle") -> None:
        self.slot = key_slot(f"{{{name}}}".encode())
        """The slot of all keys of the store."""
        self._folder = folder
        self._buses: dict[int, int] = {}
        self.masters = [self._node(number) for number in range(MASTERS)]
        self.replica = self._node(MASTERS)

    def _node(self, number: int) -> RedisServer:
        port, bus = free_port(), free_port()
        options = (
            *ALWAYS,
            *("--cluster-enabled", "yes", "--cluster-port", str(bus)),
            *("--cluster-node-timeout", str(DOWN_MILLISECONDS)),
            *("--cluster-config-file", str(self._folder / f"nodes-{number}.conf")),
            *("--repl-diskless-sync-delay", "0"),
        )
        self._buses[port] = bus
        return RedisServer(self._folder / f"node-{number}", *options, port=port)

    @property
    def url(self) -> str:
        """Value for ``--store``; the first node it names does not exist."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.masters)
        return f"redis+cluster://127.0.0.1:{free_port()},{hosts}"

    @property
    def owner(self) -> RedisServer:
        """The master that had the store's slot at the start."""
        return self.masters[self.slot * MASTERS // SLOTS]

    @property
    def others(self) -> list[RedisServer]:
        """The other masters."""
        return [node for node in self.masters if node is not self.owner]

    def __enter__(self) -> Self:
        nodes = [*self.masters, self.replica]
        for number, node in enumerate(nodes):
            node.start()
            node.command("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
            if node is not self.replica:
                first, last = (-(-SLOTS * end // MASTERS) for end in (number, number + 1))
                node.command("CLUSTER", "ADDSLOTSRANGE", str(first), str(last - 1))
        for node in nodes[1:]:
            meet = (
                "CLUSTER",
                "MEET",
                "127.0.0.1",
                str(nodes[0].port),
                str(self._buses[nodes[0].port]),
            )
            node.command(*meet)
        wait_until(lambda: all(b"cluster_known_nodes:4" in _info(node) for node in nodes))
        wait_until(lambda: all(b"cluster_state:ok" in _info(node) for node in nodes))
        wait_until(
            lambda: self.replica.command("CLUSTER", "REPLICATE", _id(self.owner)) == b"+OK\r\n"
        )
        wait_until(lambda: b"master_link_status:up" in self.replica.command("INFO", "replication"))
        wait_until(lambda: all(self._knows(node, b"slave") for node in nodes))
        return self

    def _knows(self, node: RedisServer, role: bytes) -> bool:
        """Return whether a node sees the replica in this role."""
        lines = node.command("CLUSTER", "NODES").splitlines()
        own = [line for line in lines if f":{self.replica.port}@".encode() in line]
        return any(role in line.split()[2].split(b",") for line in own)

    def fail_over(self) -> None:
        """Kill the owner; once its replica has replaced it, start it again as a replica."""
        self.owner.kill()
        wait_until(self._replaced, "a new master")
        self.owner.start()

    def _replaced(self) -> bool:
        """Return whether all know the replica as a master; if not, tell it to become one."""
        if all(self._knows(node, b"master") for node in self.others):
            return True
        self.replica.command("CLUSTER", "FAILOVER", "TAKEOVER")
        return False

    def move(self) -> RedisServer:
        """Give the slot and all its keys to another master; return that master."""
        to, slot = self.others[0], str(self.slot)
        to.command("CLUSTER", "SETSLOT", slot, "IMPORTING", _id(self.owner))
        self.owner.command("CLUSTER", "SETSLOT", slot, "MIGRATING", _id(to))
        while keys := _list(self.owner.command("CLUSTER", "GETKEYSINSLOT", slot, "10")):
            for key in keys:
                words = ("MIGRATE", "127.0.0.1", str(to.port), key, "0", MIGRATE_MILLISECONDS)
                assert self.owner.command(*words).startswith(b"+"), key
        for node in (to, self.owner, *self.masters):
            node.command("CLUSTER", "SETSLOT", slot, "NODE", _id(to))
        return to

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for node in (*self.masters, self.replica):
            node.close()


def _info(node: RedisServer) -> bytes:
    return node.command("CLUSTER", "INFO")


def _id(node: RedisServer) -> str:
    return node.command("CLUSTER", "MYID").split(b"\r\n")[1].decode()


def _list(reply: bytes) -> list[str]:
    """Return the words of a reply that is a list."""
    return [word.decode() for word in reply.split(b"\r\n")[2::2] if word]
