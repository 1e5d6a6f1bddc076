"""What a drill is, as values: a fabric, demands, probes, faults in time, expectations.

Nothing here knows a world. What a scenario asks of one is plain: links cut or silenced,
programs killed, switches drained, packets sent and counted. A world says which steps and
measures it has, and a scenario that needs others is refused before anything runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from heddle_controller.model.fabric import Fabric, Forwarding
from heddle_controller.model.flows import Flows
from heddle_controller.model.job import Job


class StepKind(Enum):
    """What a step does; the value is its word in a file."""

    CUT = "cut"
    """A cable: the upper end goes down, the lower one loses its carrier."""
    SILENCE = "silence"
    """A cable loses all packets both ways, and keeps its carrier."""
    MEND = "mend"
    """Cables, or "all" that was cut or silenced."""
    KILL = "kill"
    """SIGKILL "controller", of several the one that leads, or the agent of a switch."""
    START = "start"
    """Start again what was killed."""
    DRAIN = "drain"
    """A switch takes no new paths; said to the controller."""
    UNDRAIN = "undrain"
    DEGRADE = "degrade"
    """A cable carries less, ``gbps`` each way, and keeps its carrier."""
    FLAP = "flap"
    """A cable is cut and mended ``count`` times, once in each ``period``."""
    CRASH = "crash"
    """A switch loses power: its agent and its table are gone, all its cables are dark."""
    REBOOT = "reboot"
    """A switch that has crashed comes back with an empty table."""
    HANG = "hang"
    """The controller, or an agent, does nothing any more and does not end."""
    RESUME = "resume"
    """What hung goes on where it was."""
    SLOW = "slow"
    """An agent needs ``by`` more for whatever it is sent, in the lab up to that; 0s ends that."""
    PART = "part"
    """Two cannot reach each other by the management network any more."""
    JOIN = "join"
    """Two can again."""
    FAIL = "fail"
    """The store cannot be reached or written."""
    RESTORE = "restore"
    """The store is back."""
    SKEW = "skew"
    """The clock of the controller, or of a switch, is ``by`` wrong from now on."""
    REPLACE = "replace"
    """A host is gone: the job that has it starts anew with the host of ``with`` in its place."""
    SUBMIT = "submit"
    """A job starts that did not run from the beginning."""
    FINISH = "finish"
    """A job ends, whatever it still had to do."""


CABLES = frozenset({StepKind.CUT, StepKind.SILENCE, StepKind.MEND, StepKind.DEGRADE, StepKind.FLAP})
FAULTS = frozenset({StepKind.CUT, StepKind.SILENCE, StepKind.DEGRADE, StepKind.CRASH})
"""What takes something from packets that are on their way."""
PROGRAMS = frozenset({StepKind.KILL, StepKind.START, StepKind.HANG, StepKind.RESUME, StepKind.SKEW})
"""What befalls the controller or the agent of a switch."""
JOBS = frozenset({StepKind.SUBMIT, StepKind.FINISH})
CONTROLLER = "controller"
STORE = "store"
ALL = "all"


class Point(Enum):
    """Where in its work a controller dies; the value is its word in a file."""

    INTENT = "intent"
    """It has read what is wanted."""
    PLAN = "plan"
    """It has a plan, and has not committed it."""
    COMMIT = "commit"
    """The plan is committed, and nobody told of it."""
    PUSH = "push"
    """A push is under way."""
    ACK = "ack"
    """Switches have acknowledged, and the store does not know."""


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


@dataclass(frozen=True, slots=True)
class Bundle:
    """Several cables by what they have in common."""

    upwards: bool
    """Only those to a higher tier: of a zone, those to the cores."""
    of: str
    """A switch or a zone."""

    def __str__(self) -> str:
        return f"{'uplinks' if self.upwards else 'links'} of {self.of}"


Target = Hop | CableName | Bundle | str


@dataclass(frozen=True, slots=True)
class Step:
    """Something that is done at a time."""

    at: float
    """Seconds from the start of the run; those of set-up have 0."""
    kind: StepKind
    targets: tuple[Target, ...]
    line: int = 0
    share: float = 1.0
    """Of packets that a silent cable loses."""
    gbps: float = 0.0
    """Each way of a degraded cable."""
    period: float = 0.0
    """Seconds from one cut of a flapping cable to the next."""
    count: int = 1
    """Cuts of a flapping cable."""
    point: Point | None = None
    """Where a controller dies; None: at once."""
    by: float = 0.0
    """Seconds."""
    empty: bool = False
    """Whether an agent finds no entries when it starts."""
    other: str = ""
    """The host that takes another's place."""


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


class When(Enum):
    """The part of a run that a value is of; the value is its word in a file."""

    BEFORE = "before"
    """As the first step found it."""
    DURING = "during"
    """From the first step on, whatever was worst."""
    AFTER = "after"
    """As the run ended."""


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
    when: When | None = None
    """Which part of the run; None: all of it."""
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
    controllers: int = 1
    """Several share a Redis, and one of them leads."""


@dataclass(frozen=True, slots=True)
class ControlDelays:
    """How long control takes in a world of virtual time; all in seconds.

    What is told is what it takes there, whatever this machine needs: so a verdict is the same on
    each. Where ``measured``, planning and pushes take as long as they really did.
    """

    detect: float = 0.001
    """From a lost carrier until the agents at both ends know."""
    silent: float = 0.3
    """From the first packet lost on a silent cable until they know."""
    notice: float = 0.0005
    """A notice from one agent to the next."""
    report: float = 0.001
    """An agent's report to the controller."""
    plan: float = 0.02
    """From the report to the plan being committed."""
    push: float = 0.005
    """A stage of it, from the controller into the tables and back."""
    bgp: float = 0.1
    """From a change until the underlay of every switch knows."""
    measured: bool = False


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job that sends while the drill runs."""

    job: Job
    compute: float = 0.0
    """Seconds of an iteration in which nothing is sent."""
    iterations: int = 0
    """0: until the run ends."""
    line: int = 0


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
    jobs: tuple[JobSpec, ...] = ()
    control: ControlDelays = field(default_factory=ControlDelays)
    race: bool = False
    """Whether steps of one moment come in an order drawn from the seed, another in each run."""
    world: str = ""
    """Where it is played unless told otherwise: the first that its file names."""

    @property
    def steers(self) -> bool:
        """Whether switches only hash, so that hosts choose ports for what is demanded."""
        return bool((self.fabric.structure.nodes.forwarding == Forwarding.ECMP).any())
