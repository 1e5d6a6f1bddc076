"""What can be measured in a drill, its unit, and how it is written."""

from __future__ import annotations

from dataclasses import dataclass

_FLUID, _NETNS = frozenset({"fluid"}), frozenset({"netns"})
BOTH = _FLUID | _NETNS


@dataclass(frozen=True, slots=True)
class Measure:
    """One kind of number that a run yields."""

    about: str
    unit: str
    """"s", "packets", "share", "flows", "Gbit"; how a value in a file is read and shown."""
    per_probe: bool = True
    """Whether it is of something: a probe, a job, "demands" or "all"."""
    timed: bool = False
    """Whether ``when`` may say which part of the run it is of."""
    worlds: frozenset[str] = BOTH

    def show(self, value: float) -> str:
        """A value as people write it."""
        if self.unit == "s":
            return "never" if value == float("inf") else f"{value * 1e3:.1f} ms"
        return f"{value:.3f}" if self.unit == "share" else f"{value:g}"


MEASURES = {
    "lost": Measure("packets lost", "packets"),
    "lost_gbit": Measure("Gbit sent into black holes", "Gbit", worlds=_FLUID),
    "recovered": Measure(
        "from the fault to the first packet after the last that was lost; in virtual time the"
        " longest that a flow lost any",
        "s",
    ),
    "stranded": Measure("flows that still lose packets at the end", "flows"),
    "looped": Measure("packets that passed a switch twice", "packets"),
    "delivered": Measure("what came over what was sent", "share"),
    "slowest": Measure("least rate of any of the flows over its offer", "share", timed=True),
    "carried": Measure("rate of all the flows together over their offer", "share", timed=True),
    "utilization": Measure(
        "load over capacity of the fullest link",
        "share",
        per_probe=False,
        timed=True,
        worlds=_FLUID,
    ),
    "gap": Measure(
        "worst utilisation of the plan over its proven bound, less 1",
        "share",
        per_probe=False,
        timed=True,
        worlds=_FLUID,
    ),
    "unrouted": Measure(
        "flows that the plan has no path for", "flows", per_probe=False, timed=True, worlds=_FLUID
    ),
    "iteration": Measure(
        "time of the job's iterations over that of the first ones",
        "share",
        timed=True,
        worlds=_FLUID,
    ),
    "makespan": Measure("from the start of the job until its last iteration", "s", worlds=_FLUID),
    "up": Measure(
        "from nothing to a lab with BGP converged and agents", "s", per_probe=False, worlds=_NETNS
    ),
    "entries": Measure("entries of the plan over all switches", "flows", per_probe=False),
    "moved": Measure("flows that the plan moved", "flows", per_probe=False),
    "detected": Measure("from the fault until an agent saw it", "s", per_probe=False),
    "notified": Measure("until the controller had the report", "s", per_probe=False),
    "solved": Measure("until the new plan was committed", "s", per_probe=False),
    "programmed": Measure(
        "and as long again as any agent was busy programming it",
        "s",
        per_probe=False,
        worlds=_NETNS,
    ),
    "acked": Measure("until every agent had acknowledged it", "s", per_probe=False),
    "forgotten": Measure(
        "changes that a controller had acknowledged and that none wants any more",
        "changes",
        per_probe=False,
        worlds=_NETNS,
    ),
    "late": Measure(
        "longest that a program beside the run waited for its turn on the machine",
        "s",
        per_probe=False,
        worlds=_NETNS,
    ),
    "stretch": Measure(
        "how long work lasted beside the run over the processor's time for it",
        "share",
        per_probe=False,
        worlds=_NETNS,
    ),
    "converged": Measure(
        "from the last step until nothing is left to push", "s", per_probe=False, worlds=_FLUID
    ),
}
"""By the word that files use."""


def measure_of(key: str) -> Measure:
    """The measure of a key such as "slowest after"."""
    return MEASURES[key.partition(" ")[0]]
