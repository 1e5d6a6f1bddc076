"""What a report is made of: plain values, with nothing of a world, a drill or numpy in them.

A drill has one ``Evidence``: the verdict and what every run measured, and one ``Story`` or
more, each of a single run shown in full (with several variants, one of each tells most).
Sections that a world cannot fill stay empty and are left out of the page.

Times are seconds from the start of the run, of the clock that ``Story.clock`` names. Rates are
Gbit/s. Utilisation is load over capacity of one direction of a cable: 1.0 is full, and more than
that is asked of it where loads are demands. None is a number that there is not: a time that
never came, a cable that does not exist.

Names and texts come from users' files and may hold anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

Number = float | None


class Mark(Enum):
    """What kind of thing happened; the value is its word in JSON."""

    FAULT = "fault"
    """Something broke."""
    DETECTED = "detected"
    """Somebody saw it."""
    NOTICE = "notice"
    """Word of it reached somebody else, by a peer notice or to the controller."""
    REPAIR = "repair"
    """Tables flipped to backups, with no controller."""
    RECOVERED = "recovered"
    """Packets get through again, by whatever way."""
    PLAN = "plan"
    """A new plan was committed."""
    ACK = "ack"
    """A plan stands in the FIB of every switch that it concerns."""
    MEND = "mend"
    """What was broken is whole again."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at a moment of a run."""

    at: float
    mark: Mark
    text: str
    """In words, such as "cable s0 to l1 cut"."""
    target: str = ""
    """The cable, switch or program it happened to."""


@dataclass(frozen=True, slots=True)
class TimeSeries:
    """A value over time: ``values[i]`` stands from ``times[i]`` until the next time."""

    name: str
    times: tuple[float, ...]
    """Ascending; the last is the end, and repeats the value before if nothing else is known."""
    values: tuple[Number, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over one axis of time, in one unit."""

    title: str
    unit: str
    """"Gbit/s", "share" (0 to 1, shown in per cent), "packets"; anything else is shown as it is."""
    lines: tuple[TimeSeries, ...]
    """Jobs or groups of flows; few enough to be told apart, the rest added up into one."""
    ceiling: Number = None
    """What the lines could reach, such as the rate offered; drawn where given."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Dead:
    """A cell of a heat map whose cable is down, by row and column."""

    row: int
    column: int


@dataclass(frozen=True, slots=True)
class Moment:
    """Utilisation at a moment, or the mean around it."""

    title: str
    """"before", "during", "after", or whatever says which moment it is."""
    at: Number
    values: tuple[tuple[Number, ...], ...]
    """A row for each of the map's rows; None where no cable is. Of parallel cables the fullest."""
    dead: tuple[Dead, ...] = ()


@dataclass(frozen=True, slots=True)
class HeatMap:
    """One direction of all cables between two tiers, at several moments.

    ``maps.heat_maps`` makes them from a fabric and loads, a pair for each zone.
    """

    title: str
    """Such as "zone z0, leaf to spine"."""
    row_kind: str
    """"leaf"; the kind of nodes that the rows are."""
    column_kind: str
    rows: tuple[str, ...]
    """Node ids."""
    columns: tuple[str, ...]
    moments: tuple[Moment, ...]
    from_columns: bool = True
    """Whether a cell is the cable from its column to its row, or the other way."""


@dataclass(frozen=True, slots=True)
class Certified:
    """What a plan's certificate says, and when it stood."""

    title: str
    """"before", "after"."""
    max_utilization: Number
    lower_bound: Number
    gap: Number
    proof: str
    tiers: dict[str, float]


@dataclass(frozen=True, slots=True)
class Story:
    """One run in full."""

    title: str
    """Which run it is and why this one: "run 17 of 30, the slowest to recover"."""
    clock: str = "real"
    """"virtual" or "real"."""
    variant: str = ""
    seconds: Number = None
    """How long the run was."""
    events: tuple[Event, ...] = ()
    charts: tuple[Chart, ...] = ()
    """Rates first, then the slowest flow, then others."""
    maps: tuple[HeatMap, ...] = ()
    certificates: tuple[Certified, ...] = ()


@dataclass(frozen=True, slots=True)
class Stages:
    """How long each stage of one run's convergence took, seconds, in ``Convergence.stages``."""

    run: str
    """"run 3", or with its variant."""
    seconds: tuple[float, ...]
    """From the end of the stage before, not from the fault."""


@dataclass(frozen=True, slots=True)
class Convergence:
    """The time from the fault to the plan that stands, taken apart."""

    stages: tuple[str, ...]
    """"detect", "notify", "solve", "program": in their order."""
    runs: tuple[Stages, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """One expectation in one variant, and what was found."""

    text: str
    """All of it in one line."""
    held: bool
    what: str
    """Measure, probe and variant in words."""
    wanted: str
    """"p99 at most 10.0 ms"."""
    got: str
    """"3.1 ms", "not measured"."""
    measure: str = ""
    probe: str = ""
    variant: str = ""
    over: str = ""
    statistic: str = ""
    bound: str = ""
    when: str = ""
    """"before", "during", "after"; empty: all of the run."""
    value: Number = None
    found: Number = None
    line: int = 0
    """Of the scenario's file."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One measure over all runs of a variant."""

    measure: str
    about: str
    """What it is, in words."""
    unit: str
    """"s" (shown in ms), "share", "packets", "flows"."""
    probe: str
    variant: str
    runs: tuple[Number, ...]
    """A value a run; None is infinite: it never came."""
    median: Number = None
    p99: Number = None
    min: Number = None
    max: Number = None


@dataclass(frozen=True, slots=True)
class Fact:
    """A parameter of the run, by name: a version, a size, an option."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is known of one drill."""

    drill: str
    proves: str
    file: str
    world: str
    seed: int
    held: bool
    seconds: float
    """How long it took to play, by the clock on the wall."""
    fault: str = ""
    """Why it could not be run to its end; then it has not held, whatever was found."""
    expectations: tuple[Found, ...] = ()
    measured: tuple[Measured, ...] = ()
    stories: tuple[Story, ...] = ()
    convergence: Convergence | None = None
    facts: tuple[Fact, ...] = ()
    """Fabric, runs, versions, date."""
    assumptions: tuple[str, ...] = ()
    """What the world takes for granted, a sentence each."""
    command: str = ""
    """How to run it again."""
    scenario: str = ""
    """The file's own text."""
    notes: tuple[str, ...] = ()
