"""The values that describe a drill: fabric, demands, probes, faults in time, expectations.

This module depends on no world (the place where a drill is played). A scenario asks a world to cut
or silence links, kill programs, drain switches, and send and count packets. Each world declares the
steps and measures that it supports. A scenario that needs others is refused before anything runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from heddle_controller.model.fabric import Fabric, Forwarding
from heddle_controller.model.flows import Flows
from heddle_controller.model.job import Job


class StepKind(Enum):
    """What a step does. The value is the word that files use for it."""

    CUT = "cut"
    """Cut a cable: its upper end goes down, and its lower end loses the carrier."""
    SILENCE = "silence"
    """A cable loses packets both ways, all or a share of them, but keeps its carrier."""
    MEND = "mend"
    """Repair cables, or with "all" every cable that is cut, silent or degraded."""
    KILL = "kill"
    """Send SIGKILL to the leading controller, or to the agent of a switch."""
    START = "start"
    """Start a killed program again."""
    DRAIN = "drain"
    """Tell the controller to plan no new paths through a switch."""
    UNDRAIN = "undrain"
    DEGRADE = "degrade"
    """A cable carries only ``gbps`` each way, but keeps its carrier."""
    FLAP = "flap"
    """Cut and mend a cable ``count`` times, once in each ``period``."""
    CRASH = "crash"
    """A switch loses power: its agent and its table are gone, and all its cables go dark."""
    REBOOT = "reboot"
    """A switch that has crashed comes back with an empty table."""
    HANG = "hang"
    """The controller or an agent stops working, but its process does not end."""
    RESUME = "resume"
    """A program that hung continues where it stopped."""
    SLOW = "slow"
    """An agent reacts ``by`` later to all messages, in the lab up to ``by``; 0s ends this."""
    PART = "part"
    """Two nodes can no longer reach each other over the management network."""
    JOIN = "join"
    """Two parted nodes can reach each other again."""
    FAIL = "fail"
    """The controller's store can no longer be reached or written."""
    RESTORE = "restore"
    """The store works again."""
    SKEW = "skew"
    """From now on the clock of the controller or of a switch is wrong by ``by``."""
    REPLACE = "replace"
    """A host is lost: its job starts again, with the host named by ``with`` in its place."""
    SUBMIT = "submit"
    """Start a job. Such a job does not run from the beginning of the drill."""
    FINISH = "finish"
    """End a job, even if it has iterations left."""


CABLES = frozenset({StepKind.CUT, StepKind.SILENCE, StepKind.MEND, StepKind.DEGRADE, StepKind.FLAP})
FAULTS = frozenset({StepKind.CUT, StepKind.SILENCE, StepKind.DEGRADE, StepKind.CRASH})
"""Steps that can make packets on their way get lost or delayed."""
PROGRAMS = frozenset({StepKind.KILL, StepKind.START, StepKind.HANG, StepKind.RESUME, StepKind.SKEW})
"""Steps whose target is the controller or the agent of a switch."""
JOBS = frozenset({StepKind.SUBMIT, StepKind.FINISH})
CONTROLLER = "controller"
STORE = "store"
ALL = "all"


class Point(Enum):
    """Where in its work a controller dies. The value is the word that files use for it."""

    INTENT = "intent"
    """It has read the intent."""
    PLAN = "plan"
    """It has made a plan but not committed it."""
    COMMIT = "commit"
    """The plan is committed, but nobody has been told."""
    PUSH = "push"
    """A push to switches is under way."""
    ACK = "ack"
    """Switches have acknowledged, but the store does not know it."""


@dataclass(frozen=True, slots=True)
class Hop:
    """The n-th cable of the path of a probe's packets."""

    probe: str
    number: int
    """Position on the path; 1 is the cable from the sending NIC to its leaf."""

    def __str__(self) -> str:
        return f"hop {self.number} of {self.probe}"


@dataclass(frozen=True, slots=True)
class CableName:
    """A cable, named by its two ends. ``key`` selects one of several parallel cables."""

    a: str
    b: str
    key: str | None = None

    def __str__(self) -> str:
        return f"{self.a} to {self.b}" + (f" key {self.key}" if self.key else "")


@dataclass(frozen=True, slots=True)
class Bundle:
    """All cables from a switch or a zone to switches outside it."""

    upwards: bool
    """Whether only cables to a higher tier are meant; for a zone these lead to the cores."""
    of: str
    """Name of a switch or a zone."""

    def __str__(self) -> str:
        return f"{'uplinks' if self.upwards else 'links'} of {self.of}"


Target = Hop | CableName | Bundle | str


@dataclass(frozen=True, slots=True)
class Step:
    """One action of a scenario and its time."""

    at: float
    """Seconds from the start of the run; for set-up steps only their order matters."""
    kind: StepKind
    targets: tuple[Target, ...]
    line: int = 0
    share: float = 1.0
    """Share of packets that a silent cable loses, above 0 and at most 1."""
    gbps: float = 0.0
    """What a degraded cable carries each way, in Gbit/s."""
    period: float = 0.0
    """Seconds from one cut of a flapping cable to the next."""
    count: int = 1
    """How many times a flapping cable is cut."""
    point: Point | None = None
    """Where in its work the controller dies; None means at once."""
    by: float = 0.0
    """Seconds that an agent is slower, or that a clock is wrong (negative: slow)."""
    empty: bool = False
    """Whether the table of a started agent is emptied first."""
    other: str = ""
    """The host that replaces the target host."""


@dataclass(frozen=True, slots=True)
class ProbeSpec:
    """A stream of packets that is sent throughout a run and counted."""

    name: str
    source: str
    """NIC id, as is ``destination``."""
    destination: str
    rate: float = 0.0
    """Packets of the smallest size per second; 0 if ``mbit`` is given."""
    mbit: float = 0.0
    """Mbit/s on the wire, sent as packets of full size; 0 if ``rate`` is given."""
    protocol: str = "udp"
    beside: str = ""
    """Probe whose inner cables this one shares, by hashing and without an entry; "" for none."""
    source_port: int = 0
    """UDP or TCP source port; 0 leaves the choice to the world."""
    line: int = 0


@dataclass(frozen=True, slots=True)
class EachFlow:
    """A probe for every QP of every demand. All of them share one name."""

    name: str
    variant: str = ""
    """Variant whose demands are probed; "" means the variant that runs."""
    mbit: float = 0.0
    rate: float = 0.0
    protocol: str = "udp"
    line: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """One set of demands under which the drill is played."""

    name: str
    flows: Flows
    """Flows demanded from the controller; if empty, the underlay routes everything."""


class When(Enum):
    """The part of a run that a measured value covers. The value is the word that files use."""

    BEFORE = "before"
    """The state right before the first step."""
    DURING = "during"
    """The worst state from the first step on."""
    AFTER = "after"
    """The state at the end of the run."""


class Bound(Enum):
    """Whether an expected value is an upper or a lower limit."""

    MOST = "most"
    LEAST = "least"


class Statistic(Enum):
    """The statistic over all runs that is compared with an expectation."""

    MEDIAN = "median"
    P99 = "p99"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True)
class Expectation:
    """An expectation: a statistic of a measure over all runs stays within a bound."""

    measure: str
    of: str
    """Name of a probe or job, "demands" or "all"; "" for measures of the whole."""
    statistic: Statistic
    bound: Bound
    value: float
    """The bound in the measure's own unit (seconds, packets, a share); with ``over`` a ratio."""
    variant: str = ""
    """The only variant that it applies to; "" means every variant."""
    over: str = ""
    """Variant by whose statistic this one is divided, which gives a ratio; "" for none."""
    when: When | None = None
    """The part of the run that is judged; None means the whole run."""
    line: int = 0


@dataclass(frozen=True, slots=True)
class LabSpec:
    """Settings of the lab. Worlds without a lab ignore them."""

    rate_mbit: float = 0.0
    """Speed of the fastest cable in Mbit/s; 0 is unlimited."""
    bfd_ms: int = 0
    probe_ms: int = 0
    """How often agents probe their cables, or steering hosts their paths; 0 keeps the default."""
    flap_memory: float = 5.0
    """Seconds for which agents remember a lost cable. Short, because drills often lose cables."""
    programs: bool = True
    """Whether a controller and agents run; without them there is BGP alone."""
    controllers: int = 1
    """Number of controllers. Several share a Redis, and one of them leads."""


@dataclass(frozen=True, slots=True)
class ControlDelays:
    """How long each control action takes in virtual time, in seconds.

    These values apply whatever the machine really needs, so a verdict is the same on every machine.
    If ``measured`` is set, planning and pushes take as long as they really took.
    """

    detect: float = 0.001
    """From the loss of a carrier until the agents at both ends know."""
    silent: float = 0.3
    """From the moment a cable goes silent until the agents at both ends know."""
    notice: float = 0.0005
    """A peer notice from one agent to the next."""
    report: float = 0.001
    """An agent's report on its way to the controller."""
    plan: float = 0.02
    """From the report until the new plan is committed."""
    push: float = 0.005
    """One stage of a rollout, from the controller into the tables and back."""
    bgp: float = 0.1
    """From the detection of a change until the underlay of every switch knows."""
    measured: bool = False


MOST_ITERATIONS = 3000
"""Most iterations of a job in one run."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job that sends while the drill runs."""

    job: Job
    compute: float = 0.0
    """Seconds of each iteration in which nothing is sent."""
    iterations: int = 0
    """Number of iterations; 0 means until the run ends."""
    line: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Scenario:
    """One drill."""

    name: str
    proves: str
    """One sentence: what the drill proves when it holds."""
    path: str
    """The file that it was read from."""
    worlds: frozenset[str]
    fabric: Fabric
    variants: tuple[Variant, ...]
    probes: tuple[ProbeSpec | EachFlow, ...]
    setup: tuple[Step, ...]
    """Steps done before the timeline of every run."""
    timeline: tuple[Step, ...]
    expectations: tuple[Expectation, ...]
    runs: int = 1
    settle: float = 0.5
    """Seconds for which a run is watched after the last step."""
    seed: int = 0
    lab: LabSpec = field(default_factory=LabSpec)
    jobs: tuple[JobSpec, ...] = ()
    control: ControlDelays = field(default_factory=ControlDelays)
    race: bool = False
    """Whether steps of one moment come in random order, drawn anew for each run from the seed."""
    world: str = ""
    """The default world: the first one that the file names."""

    @property
    def steers(self) -> bool:
        """Whether some switches only hash (ECMP), so that hosts choose the source ports."""
        return bool((self.fabric.structure.nodes.forwarding == Forwarding.ECMP).any())
