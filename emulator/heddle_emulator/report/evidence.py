"""The data of a report: plain values, independent of worlds, drills and numpy.

A drill has one ``Evidence``: the verdict, what every run measured, and at least one ``Story``. Each
story shows a single run in full; if there are several variants, one run of each is most useful.
Sections that a world cannot fill stay empty and are left out of the page.

Times are in seconds from the start of the run, by the clock that ``Story.clock`` names. Rates are
in Gbit/s. Utilisation is load over capacity of one direction of a cable. 1.0 is full; where loads
are demands, it can be more. None is a number that does not exist: a time that never came, or a
cable that does not exist.

Names and texts come from users' files and may contain anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

Number = float | None


class Mark(Enum):
    """The kind of an event; its value is used in JSON."""

    FAULT = "fault"
    """Something broke."""
    DETECTED = "detected"
    """An agent detected it."""
    NOTICE = "notice"
    """A peer notice or a report to the controller arrived."""
    REPAIR = "repair"
    """Tables switched to backups, without a controller."""
    RECOVERED = "recovered"
    """Packets get through again, on any path."""
    PLAN = "plan"
    """A new plan was committed."""
    ACK = "ack"
    """A plan is in the FIB of every switch that it concerns."""
    MEND = "mend"
    """What was broken works again."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at a moment of a run."""

    at: float
    mark: Mark
    text: str
    """A description such as "cable s0 to l1 cut"."""
    target: str = ""
    """The cable, switch or program it happened to."""


@dataclass(frozen=True, slots=True)
class TimeSeries:
    """A value over time: ``values[i]`` holds from ``times[i]`` until the next time."""

    name: str
    times: tuple[float, ...]
    """Ascending. The last one is the end and repeats the value before if nothing else is known."""
    values: tuple[Number, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over one axis of time, in one unit."""

    title: str
    unit: str
    """"Gbit/s", "share" (0 to 1, shown in per cent), "packets"; other units are shown as given."""
    lines: tuple[TimeSeries, ...]
    """Jobs or groups of flows, few enough to tell apart; the rest are one line with their sum."""
    ceiling: Number = None
    """The most that the lines could reach, such as the offered rate; drawn if given."""
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
    """"before", "during", "after", or another name of the moment."""
    at: Number
    values: tuple[tuple[Number, ...], ...]
    """A tuple for each row of the map. None: no cable. Of parallel cables, the fullest counts."""
    dead: tuple[Dead, ...] = ()


@dataclass(frozen=True, slots=True)
class HeatMap:
    """One direction of all cables between two tiers, at several moments.

    ``maps.heat_maps`` makes these from a fabric and loads, a pair for each zone.
    """

    title: str
    """For example "zone z0, leaf to spine"."""
    row_kind: str
    """The kind of nodes that the rows are, such as "leaf"."""
    column_kind: str
    rows: tuple[str, ...]
    """Node ids."""
    columns: tuple[str, ...]
    moments: tuple[Moment, ...]
    from_columns: bool = True
    """Whether a cell is the cable from its column to its row, and not the reverse."""


@dataclass(frozen=True, slots=True)
class Certified:
    """A plan's certificate, and when that plan was current."""

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
    """Which run it is and why it was chosen: "run 17 of 30, the slowest to recover"."""
    clock: str = "real"
    """"virtual" or "real"."""
    variant: str = ""
    seconds: Number = None
    """Length of the run."""
    events: tuple[Event, ...] = ()
    charts: tuple[Chart, ...] = ()
    """Rates first, then the slowest flow, then others."""
    maps: tuple[HeatMap, ...] = ()
    certificates: tuple[Certified, ...] = ()


@dataclass(frozen=True, slots=True)
class Stages:
    """Seconds that each of ``Convergence.stages`` took in one run."""

    run: str
    """"run 3", or with its variant."""
    seconds: tuple[float, ...]
    """Each from the end of the stage before, not from the fault."""


@dataclass(frozen=True, slots=True)
class Convergence:
    """The time from the fault to the new plan in the FIBs, divided into stages."""

    stages: tuple[str, ...]
    """"detect", "notify", "solve", "program", in this order."""
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
    """For example "p99 at most 10.0 ms"."""
    got: str
    """For example "3.1 ms", "not measured"."""
    measure: str = ""
    probe: str = ""
    variant: str = ""
    over: str = ""
    statistic: str = ""
    bound: str = ""
    when: str = ""
    """"before", "during", "after"; empty means the whole run."""
    value: Number = None
    found: Number = None
    line: int = 0
    """Line in the scenario's file."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One measure over all runs of a variant."""

    measure: str
    about: str
    """A description of the measure."""
    unit: str
    """"s" (shown in ms), "share", "packets", "flows"."""
    probe: str
    variant: str
    runs: tuple[Number, ...]
    """A value for each run; None is infinity: it never came."""
    median: Number = None
    p99: Number = None
    min: Number = None
    max: Number = None


@dataclass(frozen=True, slots=True)
class Fact:
    """A property of the run by name: a version, a size, an option."""

    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """All results of one drill."""

    drill: str
    proves: str
    file: str
    world: str
    seed: int
    held: bool
    seconds: float
    """Wall-clock time that the drill took."""
    fault: str = ""
    """Why it did not run to its end. It has then not held, whatever was found."""
    expectations: tuple[Found, ...] = ()
    measured: tuple[Measured, ...] = ()
    stories: tuple[Story, ...] = ()
    convergence: Convergence | None = None
    facts: tuple[Fact, ...] = ()
    """Fabric, runs, versions, date."""
    assumptions: tuple[str, ...] = ()
    """What the world assumes, one sentence each."""
    command: str = ""
    """The command that runs it again."""
    scenario: str = ""
    """The text of the scenario file."""
    notes: tuple[str, ...] = ()
