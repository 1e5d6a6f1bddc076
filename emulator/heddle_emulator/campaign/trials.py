"""Trials: draw what breaks together, in order, at random, or by published failure rates.

The number of a trial and the campaign's seed determine all that is drawn. So any trial can be
played again without the earlier ones. There are three ways to draw:

``each``       every link between switches in turn, then again from the first
``random``     ``at_once`` links between switches, all equally likely
``published``  the next failure by the published rates, and what is still broken at that time: a
               Poisson number of lasting failures within the time to mend

Only links between switches are drawn, because nothing can find a path for a NIC that has lost its
only link. A leaf that loses power cuts off its NICs too; the trial shows the effect on all others.

These failure rates are published for AI fabrics:

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

The last one is used to check the others. With two links and a fifteenth of a switch for each GPU,
the first two come to 0.16 % of GPUs a month, and not all of these failures end a job. Nothing is
published for such fabrics on two things, so they are assumed: that links between switches fail as
often as links of NICs, and how long a repair takes.
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
"""Failures of one link per hour."""
SWITCH = 2e-2 / (3 * HOURS_A_MONTH)
"""Failures of one switch per hour."""
FLAP = 3600 / 48 / 10e6
"""Flaps of one link per hour."""
MEND_HOURS = 24.0
"""Default hours until a broken part is repaired."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected failures of a fabric per hour."""

    links: float
    flaps: float
    switches: float

    @property
    def total(self) -> float:
        """Events of any kind per hour."""
        return self.links + self.flaps + self.switches

    @property
    def lasting(self) -> float:
        """Events per hour that leave something broken until it is repaired."""
        return self.links + self.switches


def expected_failures(links: int, switches: int) -> Expected:
    """Return the expected failures of this many links and switches."""
    return Expected(links * CABLE, links * FLAP, switches * SWITCH)


class FaultKind(Enum):
    """What an event does. The value is the word that files use."""

    LINK = "link"
    """A cable loses its carrier until it is repaired."""
    FLAP = "flap"
    """A cable loses and regains its carrier several times within moments."""
    SWITCH = "switch"
    """A switch loses power, and with it its table."""


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """One thing that breaks."""

    kind: FaultKind
    row: int
    """Row of the link, or node row of the switch."""

    def words(self, fabric: Fabric) -> str:
        """Return the event in words, such as "link l0,s1,0" or "switch s3"."""
        ids = fabric.structure.nodes.ids
        name = ids[self.row] if self.kind is FaultKind.SWITCH else fabric.link_name(self.row)
        return f"{self.kind.value} {name}"

    def steps(self, fabric: Fabric) -> tuple[Step, Step]:
        """Return the step that breaks it and the step that repairs it; for a flap, of one cut."""
        if self.kind is FaultKind.SWITCH:
            targets: tuple[Target, ...] = (fabric.structure.nodes.ids[self.row],)
            return Step(0.0, StepKind.CRASH, targets), Step(0.0, StepKind.REBOOT, targets)
        targets = (cable_name(fabric, self.row),)
        return Step(0.0, StepKind.CUT, targets), Step(0.0, StepKind.MEND, targets)


@dataclass(frozen=True, slots=True)
class Trial:
    """Events that happen together and are then repaired."""

    number: int
    """Number from 0; with the campaign's seed it determines the events."""
    events: tuple[FaultEvent, ...]


class Draw(Enum):
    """A way to draw trials. The value is the word that files use."""

    EACH = "each"
    RANDOM = "random"
    PUBLISHED = "published"


@dataclass(frozen=True, slots=True)
class Drawing:
    """How trials are drawn."""

    draw: Draw = Draw.RANDOM
    at_once: int = 1
    """Number of links that fail together, for ``Draw.RANDOM``."""
    mend_hours: float = MEND_HOURS
    """Hours for which things stay broken, for ``Draw.PUBLISHED``."""
    seed: int = 0


def between_switches(fabric: Fabric) -> Ints:
    """Return the rows of links between two switches that are up."""
    links, kind = fabric.structure.links, fabric.structure.nodes.kind
    inner = (kind[links.a] != NodeKind.NIC) & (kind[links.b] != NodeKind.NIC)
    return np.flatnonzero(inner & (fabric.effective == State.UP))


def trials(fabric: Fabric, drawing: Drawing, count: int) -> list[Trial]:
    """Return the first ``count`` trials of a campaign.

    Raises:
        InputError: fewer links between switches are up than shall fail at once.
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
    for kind in [*kinds, first]:  # lasting failures break first
        row = int(random.choice(switches if kind is FaultKind.SWITCH else links))
        found.setdefault((kind is FaultKind.SWITCH, row), FaultEvent(kind, row))
    return tuple(found.values())
