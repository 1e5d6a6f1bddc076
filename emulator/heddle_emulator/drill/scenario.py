"""What a drill is, as values: a fabric, demands, probes, faults in time, expectations.

Nothing here knows a world. What a scenario asks of one is plain: links cut or silenced,
programs killed, switches drained, packets sent and counted. A world says which steps and
measures it has, and a scenario that needs others is refused before anything runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows


class Kind(Enum):
    """What a step does; the value is its word in a file."""

    CUT = "cut"
    """A cable: the upper end goes down, the lower one loses its carrier."""
    SILENCE = "silence"
    """A cable loses all packets both ways, and keeps its carrier."""
    MEND = "mend"
    """Cables, or "all" that was cut or silenced."""
    KILL = "kill"
    """SIGKILL "controller" or the agent of a switch."""
    START = "start"
    """Start again what was killed."""
    DRAIN = "drain"
    """A switch takes no new paths; said to the controller."""
    UNDRAIN = "undrain"


CABLES = frozenset({Kind.CUT, Kind.SILENCE, Kind.MEND})
FAULTS = frozenset({Kind.CUT, Kind.SILENCE})
CONTROLLER = "controller"
ALL = "all"


@dataclass(frozen=True, slots=True)
class Hop:
    """A cable on the way that packets of a probe take when the step is due."""

    probe: str
    number: int
    """1 is the cable from the NIC to its leaf."""

    def __str__(self) -> str:
        return f"hop {self.number} of {self.probe}"


@dataclass(frozen=True, slots=True)
class CableName:
    """A cable by its ends and, where there are several, its key."""

    a: str
    b: str
    key: str | None = None

    def __str__(self) -> str:
        return f"{self.a} to {self.b}" + (f" key {self.key}" if self.key else "")


Target = Hop | CableName | str


@dataclass(frozen=True, slots=True)
class Step:
    """Something that is done at a time."""

    at: float
    """Seconds from the start of the run; those of set-up have 0."""
    kind: Kind
    targets: tuple[Target, ...]
    line: int = 0


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """Packets that are sent throughout a run, and counted."""

    name: str
    source: str
    """NIC ids."""
    destination: str
    rate: float = 0.0
    """Packets a second, of the least size; 0 where ``mbit`` is given."""
    mbit: float = 0.0
    """Mbit/s on the wire, in packets of full size."""
    protocol: str = "udp"
    beside: str = ""
    """A probe whose cables this one shares by hash alone: no entry speaks of it."""
    source_port: int = 0
    """0 leaves the choice to the world."""
    line: int = 0


@dataclass(frozen=True, slots=True)
class EachFlow:
    """A probe for every QP of every demand; its name stands for all of them."""

    name: str
    variant: str = ""
    """Whose demands; empty: those of the variant that runs."""
    mbit: float = 0.0
    rate: float = 0.0
    protocol: str = "udp"
    line: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """The same drill under other demands."""

    name: str
    flows: Flows
    """What is told to the controller; empty leaves all to the underlay."""


class Bound(Enum):
    """Which side of a value is good."""

    MOST = "most"
    LEAST = "least"


class Statistic(Enum):
    """What of many runs is held against an expectation."""

    MEDIAN = "median"
    P99 = "p99"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class Expectation:
    """A statistic of a measure over all runs, within a bound."""

    measure: str
    of: str
    """Probe, or "" for measures of the whole."""
    statistic: Statistic
    bound: Bound
    value: float
    """In the measure's own unit: seconds, packets, a share."""
    variant: str = ""
    """Only in this variant; empty: in each."""
    over: str = ""
    """A variant that the statistic is divided by: then it is a ratio."""
    line: int = 0


@dataclass(frozen=True, slots=True)
class LabSpec:
    """How the lab is to be where the world has one."""

    rate_mbit: float = 0.0
    """Speed of the fastest cable; 0 is unlimited."""
    bfd_ms: int = 0
    probe_ms: int = 0
    """How often agents probe their cables; 0 leaves it to them."""
    flap_memory: float = 5.0
    """Seconds for which agents remember a lost cable: short, as a drill loses one often."""
    programs: bool = True
    """Whether there are a controller and agents."""


@dataclass(frozen=True, slots=True, eq=False)
class Scenario:
    """One drill."""

    name: str
    proves: str
    """What it shows when it holds."""
    path: str
    """File that it was read from."""
    worlds: frozenset[str]
    fabric: Fabric
    variants: tuple[Variant, ...]
    probes: tuple[ProbeSpec | EachFlow, ...]
    setup: tuple[Step, ...]
    """Done once for each variant, before the first run."""
    timeline: tuple[Step, ...]
    expectations: tuple[Expectation, ...]
    runs: int = 1
    settle: float = 0.5
    """Seconds that are watched after the last step."""
    seed: int = 0
    lab: LabSpec = field(default_factory=LabSpec)
