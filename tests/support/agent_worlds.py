"""Switches, entries and pushes for tests of the agent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from heddle_agent import conformance
from heddle_agent.fib import Link, Match, MemoryFib, NextHop, Underlay
from heddle_agent.table import (
    DELETE,
    Fence,
    Forwarding,
    GroupKey,
    Mode,
    Operations,
    Push,
    Receipt,
)

SWITCH, SPINES, ROCE = conformance.SWITCH, conformance.SPINES, conformance.bench.ROCE
uplink, far = conformance.uplink, conformance.far
NICS = tuple(NextHop(f"nic{number}") for number in range(2))
HOPS = (*SPINES, *NICS)


def entry(
    primary: int, backup: int | None = None, *risks: Link, spare: Iterable[Link] = ()
) -> GroupKey:
    """Return the group of an entry: spines by number, and the risk links of each."""
    second = None if backup is None else SPINES[backup]
    return (SPINES[primary], second, tuple(sorted(set(risks))), tuple(sorted(set(spare))))


def match(number: int, source_port: int = 0, destination_port: int = 0) -> Match:
    """Return the match of packets from the local NIC to a far NIC."""
    return ("nic0", f"far{number}", source_port, destination_port)


def push(
    operations: Iterable[tuple[Match, GroupKey | None]] = (),
    *,
    mode: Mode = Mode.INCREMENTAL,
    version: tuple[int, int] = (1, 1),
    sweep: bool = False,
    completes: bool = False,
    addresses: dict[str, str] | None = None,
) -> Push:
    """Return a push of sets, and of deletes where the entry is None."""
    rows = list(operations)
    keys = list(dict.fromkeys(key for _, key in rows if key is not None))
    return Push(
        mode=mode,
        version=Fence(*version),
        operations=Operations(
            matches=[found for found, _ in rows],
            groups=[DELETE if key is None else keys.index(key) for _, key in rows],
            keys=keys,
            addresses=addresses or {},
        ),
        sweep_stale=sweep,
        completes_generation=completes,
    )


class FixedUnderlay:
    """An underlay that the test defines: next hops by destination, or the same for all."""

    def __init__(self, default: Sequence[NextHop] = SPINES) -> None:
        self.default = default
        self.routes: dict[str, Sequence[NextHop]] = {}

    def next_hops(self, destination: str) -> Sequence[NextHop]:
        """Return the next hops that the test defined."""
        return self.routes.get(destination, self.default)


def fib(table_size: int = 0, underlay: Underlay | None = None) -> MemoryFib:
    """Return a memory backend of the switch."""
    return MemoryFib(SWITCH, HOPS, underlay or FixedUnderlay(), seed=7, table_size=table_size)


def forwarding(backend: MemoryFib | None = None, fence: Fence | None = None) -> Forwarding:
    """Return the switch's table with a memory backend."""
    ports = [hop.port for hop in HOPS]
    return Forwarding(SWITCH, backend or fib(), ports, fence=fence or Fence())


def take(switch: Forwarding, wanted: Push) -> Receipt:
    """Receive and program a push; the receipt names the failures of both steps."""
    receipt = switch.receive(wanted)
    failures = switch.program(wanted)
    return receipt._replace(failures=(*receipt.failures, *failures))
