"""The pure functions that make a plan, handed in as values, so that tests can replace any.

Who only needs to know what they are, such as a command, does not load the solver for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from heddle_controller.model.arrays import Ints
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.job import Job
from heddle_controller.model.plan import Certificate, Plan
from heddle_controller.model.program import Entries


class Repair(Protocol):
    """A plan, ready to be repaired."""

    def copy(self, *, backups: bool = True) -> Repair:
        """Another of the same plan, for a repair that this one is not to know of.

        Without ``backups`` it may leave out those of paths that it makes.
        """
        ...

    def repair(self, fabric: Fabric, flows: Flows) -> Plan:
        """A plan for the fabric and flows as they are now, in which only what must move moves."""
        ...

    def relieved(self) -> Plan | None:
        """The plan that ``repair`` gave, brought to its bound by moving few; None where not."""
        ...

    def is_ready_for(self, plan: Plan) -> bool:
        """Whether it is this very plan that the next repair begins with, all indexes there."""
        ...


class EntriesOf(Protocol):
    """What switches must hold."""

    def __call__(self, plan: Plan, before: tuple[Plan, Entries] | None = None) -> Entries:
        """Entries of a plan; ``before`` is an earlier plan and what this gave for it."""
        ...


class Verify(Protocol):
    """Raises where a plan must not be used."""

    def __call__(self, plan: Plan, known: Plan | None = None) -> None:
        """Check a plan; ``known`` is one that passed, and need not be looked at twice."""
        ...


@dataclass(frozen=True, slots=True)
class Engine:
    """Every function is pure, and may raise: the loop then keeps the plan it has."""

    flows_of_job: Callable[[Job, Fabric], Flows]
    """``traffic.jobs.flows_of_job``."""
    solve: Callable[[Fabric, Flows, Plan | None], Plan]
    """``solve.anew``."""
    repairer: Callable[[Plan], Repair]
    """``solve.repairer_of``."""
    prove: Callable[[Plan], Certificate]
    """``solve.prove``."""
    verify: Verify
    """``plan.verify.verify_plan``."""
    entries_of: EntriesOf
    """``plan.revision.entries_after``."""
    changed_flows: Callable[[Plan, Plan], Ints]
    """``plan.diff.changed_flows``."""
    gain_of_jobs: Callable[[Plan, Plan], float]
    """``place.score.gain_of_jobs``."""
