"""What a case needs of any backend: the backend, and a way to see where packets really go.

A bench stands for one switch, ``leaf0``, with uplinks to ``spine0`` to ``spine3``, each with the
link key "0", and an underlay that spreads flows over all uplinks that are up. NICs ``nic0`` and
``nic1`` are attached to the switch, and ``far0`` to ``far3`` are reached over the uplinks.
``ADDRESSES`` gives their IP addresses. ``where`` answers from the data plane, never from what was
programmed: for a kernel or a chip it sends packets.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from heddle_agent.fib import Choice, Fib, Group, Link, NextHop, Packet

SWITCH = "leaf0"
SPINES = tuple(NextHop(f"spine{number}") for number in range(4))
ADDRESSES = {
    **{f"nic{number}": f"10.0.0.{number + 1}" for number in range(2)},
    **{f"far{number}": f"10.9.0.{number + 1}" for number in range(4)},
}
ROCE = 4791
"""UDP destination port of all packets."""


class Bench(Protocol):
    """One switch with a backend under test."""

    fib: Fib

    def where(self, packet: Packet) -> NextHop | None:
        """Return the uplink by which a packet leaves, one of ``SPINES``; None if it is lost."""

    def carry(self, packet: Packet, number: int, size: int) -> None:
        """Send ``number`` packets of ``size`` bytes each."""

    def links(self, down: frozenset[Link], choices: dict[Group, Choice]) -> None:
        """Make exactly these links fail, and then steer the backend as the agent does.

        Links of the switch itself (``uplink``) lose their carrier. The backend is only told of
        links farther away (``far``).
        """


OpenBench = Callable[[int], AbstractContextManager[Bench]]
"""Opens a bench whose table holds this many entries; 0 is as many as it can. The context is left
when the case is over, and then closes the backend. A class with ``__enter__`` and ``__exit__`` will
do."""


def uplink(spine: int) -> Link:
    """Return the link from the switch to a spine."""
    return Link.between(SWITCH, f"spine{spine}")


def far(spine: int, leaf: int = 9) -> Link:
    """Return a link between a spine and another leaf."""
    return Link.between(f"spine{spine}", f"leaf{leaf}")
