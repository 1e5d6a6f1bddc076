"""Which collectives of a job run at once, and which take turns: its phases.

A rank waits for its tensor-parallel partners before it talks to its replicas, so groups
of different kinds take turns. So do operations of one group, as one communicator does
one thing after another, unless one of them says that they overlap. Operations of a group
that send the same way (an all-gather and a reduce-scatter, both on a ring) are one phase
all the same: a path that is good for one of them is good for the other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from heddle_controller.model.job import Collective, Group
from heddle_controller.traffic.patterns import pattern_name

Way = tuple[Group, str]
"""A group, and how it sends: ``patterns.pattern_name``."""


def send_pattern(collective: Collective) -> Way:
    """The way that a collective sends."""
    return collective.group, pattern_name(collective)


def phase_names(collectives: Iterable[Collective]) -> dict[Way, str]:
    """The phase of each way that a job's collectives send.

    A phase is named for its group ("dp"), where the group has several also for how they
    send ("dp-ring", "dp-pairwise"). Ways come by group (tp, pp, dp, cp, ep, world), then
    by name, whatever the order of the collectives.
    """
    ways, at_once = set(), set()
    for one in collectives:
        ways.add(send_pattern(one))
        if one.overlap:
            at_once.add(one.group)
    of_group = {group: sorted(name for own, name in ways if own is group) for group in Group}
    return {
        (group, name): group.value if len(own) == 1 or group in at_once else f"{group.value}-{name}"
        for group, own in of_group.items()
        for name in own
    }


def phases_of(collectives: Iterable[Collective]) -> dict[str, tuple[Collective, ...]]:
    """What each phase sends, by name: one collective an operation and way, bytes added up."""
    wanted = tuple(collectives)
    total: dict[Collective, int] = {}
    for one in wanted:
        kind = replace(one, bytes=0, overlap=False)
        total[kind] = total.get(kind, 0) + one.bytes
    found: dict[str, tuple[Collective, ...]] = {}
    for way, name in phase_names(wanted).items():
        own = [
            replace(kind, bytes=size) for kind, size in total.items() if send_pattern(kind) == way
        ]
        found[name] = (*found.get(name, ()), *own)
    return found
