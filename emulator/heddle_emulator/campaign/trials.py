"""Trials: what breaks together, drawn one after another, at random, or as often as published.

A trial is known by its number: with the campaign's seed the number says all that is drawn, so any
trial can be played again without those before it.

``each``       every link between switches in its turn, and again from the first
``random``     so many links between switches at once, all equally likely
``published``  what breaks next by the published rates, and beside it what is still broken
               by then: a Poisson number of lasting failures within the time to mend

Only links between switches are drawn: a NIC that loses its one link has no path that anybody could
find. A leaf that loses its power cuts off its NICs too; what matters is what it does to all others.

How often parts of AI fabrics break, as published, and what follows for the next failure.

======================  =================================================================
cables                  0.057 % of links between NIC and leaf fail in a month (Alibaba HPN,
                        SIGCOMM 2024, 10.1145/3651890.3672265)
switches                2 % fail within three months of service (Surviving switch failures
                        in cloud datacenters, CCR 51(2), 2021)
flaps                   one every 48 s over 10 million optical links (The Ghost in the
                        Datacenter, arXiv 2603.03736, from the same sources)
network of a large job  8.4 % of 419 unexpected interruptions in 54 days on 16,384 GPUs
                        (Llama 3): 0.12 % of GPUs a month
======================  =================================================================

The last is how the others are checked: two links and a fifteenth of a switch for each GPU
come to 0.16 % of GPUs a month by the first two, and not all of these end a job. That links
between switches fail as often as those of NICs, and how long it takes until one is mended,
is assumed: nobody has published it for such fabrics.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from heddle_controller.model.arrays import Ints
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_emulator.drill.live import cable_name
from heddle_emulator.drill.scenario import Step, StepKind, Target

HOURS_A_MONTH = 30 * 24.0
CABLE = 0.057e-2 / HOURS_A_MONTH
"""Failures of one link in an hour."""
SWITCH = 2e-2 / (3 * HOURS_A_MONTH)
"""Failures of one switch in an hour."""
FLAP = 3600 / 48 / 10e6
"""Flaps of one link in an hour."""
INTERRUPTIONS = 0.084 * 419 / (54 * 24.0) / 16_384
"""Interruptions by the network that one GPU meets in an hour, in a job of so many."""
MEND_HOURS = 24.0
"""Until what is broken is mended, unless the caller knows better."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a fabric has to expect in an hour."""

    links: float
    flaps: float
    switches: float

    @property
    def total(self) -> float:
        """Events of any kind in an hour."""
        return self.links + self.flaps + self.switches

    @property
    def lasting(self) -> float:
        """Events in an hour that leave something broken until it is mended."""
        return self.links + self.switches


def expected_failures(links: int, switches: int) -> Expected:
    """Failures to expect of so many links and switches."""
    return Expected(links * CABLE, links * FLAP, switches * SWITCH)


class FaultKind(Enum):
    """What an event does; the value is its word in files."""

    LINK = "link"
    """A cable loses its carrier, and stays so until it is mended."""
    FLAP = "flap"
    """A cable loses its carrier and has it back, several times within moments."""
    SWITCH = "switch"
    """A switch loses its power, and its table with it."""


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """Something that breaks."""

    kind: FaultKind
    row: int
    """Of the link or the node."""

    def words(self, fabric: Fabric) -> str:
        """Such as "link l0,s1" or "switch s3"."""
        ids = fabric.structure.nodes.ids
        name = ids[self.row] if self.kind is FaultKind.SWITCH else fabric.link_name(self.row)
        return f"{self.kind.value} {name}"

    def steps(self, fabric: Fabric) -> tuple[Step, Step]:
        """What breaks it, and what mends it again; a flap's are those of a cable."""
        if self.kind is FaultKind.SWITCH:
            targets: tuple[Target, ...] = (fabric.structure.nodes.ids[self.row],)
            return Step(0.0, StepKind.CRASH, targets), Step(0.0, StepKind.REBOOT, targets)
        targets = (cable_name(fabric, self.row),)
        return Step(0.0, StepKind.CUT, targets), Step(0.0, StepKind.MEND, targets)


@dataclass(frozen=True, slots=True)
class Trial:
    """What breaks together, and is mended again."""

    number: int
    """From 0; with the campaign's seed it draws the events."""
    events: tuple[FaultEvent, ...]


class Draw(Enum):
    """A way to draw; the value is its word."""

    EACH = "each"
    RANDOM = "random"
    PUBLISHED = "published"


@dataclass(frozen=True, slots=True)
class Drawing:
    """How trials are drawn."""

    draw: Draw = Draw.RANDOM
    at_once: int = 1
    """Links that fail together, where they are drawn at random."""
    mend_hours: float = MEND_HOURS
    """How long what breaks stays broken, where rates are the published ones."""
    seed: int = 0


def between_switches(fabric: Fabric) -> Ints:
    """Rows of links between two switches that are up."""
    links, kind = fabric.structure.links, fabric.structure.nodes.kind
    inner = (kind[links.a] != NodeKind.NIC) & (kind[links.b] != NodeKind.NIC)
    return np.flatnonzero(inner & (fabric.effective == State.UP))


def trials(fabric: Fabric, drawing: Drawing, count: int) -> list[Trial]:
    """The first trials of a campaign.

    Raises:
        InputError: no link between switches is up, or fewer than shall fail at once.
    """
    links = between_switches(fabric)
    if len(links) < drawing.at_once:
        reason = f"there are {len(links)} that are up; {drawing.at_once} cannot fail at once"
        raise refuse("campaign", "links between switches", reason)
    return [Trial(number, _events(fabric, links, drawing, number)) for number in range(count)]


def _events(fabric: Fabric, links: Ints, drawing: Drawing, number: int) -> tuple[FaultEvent, ...]:
    if drawing.draw is Draw.EACH:
        return (FaultEvent(FaultKind.LINK, int(links[number % len(links)])),)
    random = np.random.default_rng([drawing.seed, number])
    if drawing.draw is Draw.RANDOM:
        drawn = random.choice(links, drawing.at_once, replace=False)
        return tuple(FaultEvent(FaultKind.LINK, row) for row in drawn.tolist())
    return _published(fabric, links, drawing.mend_hours, random)


def _published(
    fabric: Fabric, links: Ints, mend_hours: float, random: np.random.Generator
) -> tuple[FaultEvent, ...]:
    switches = np.flatnonzero(fabric.structure.nodes.kind != NodeKind.NIC)
    hourly = expected_failures(len(links), len(switches))
    most = np.array([hourly.links, hourly.flaps, hourly.switches]) / hourly.total
    first = FaultKind(
        random.choice([FaultKind.LINK.value, FaultKind.FLAP.value, FaultKind.SWITCH.value], p=most)
    )
    standing = int(random.poisson(hourly.lasting * mend_hours))
    lasting = hourly.links / hourly.lasting
    kinds = [
        FaultKind.LINK if random.random() < lasting else FaultKind.SWITCH for _ in range(standing)
    ]
    found: dict[tuple[bool, int], FaultEvent] = {}
    for kind in [*kinds, first]:  # what stands already breaks first
        row = int(random.choice(switches if kind is FaultKind.SWITCH else links))
        found.setdefault((kind is FaultKind.SWITCH, row), FaultEvent(kind, row))
    return tuple(found.values())
