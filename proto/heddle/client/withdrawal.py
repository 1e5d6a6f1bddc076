"""Tells when no switch holds an entry any more of something that was deleted."""

from __future__ import annotations

from heddle.v1 import plan_pb2


class Withdrawal:
    """Follows the plans of a fabric until all switches have dropped what was deleted."""

    def __init__(self, version: int, generation: int | None = None) -> None:
        """Wait for this intent version, or for a plan's generation if one is given."""
        self._version = version
        """A version that a plan has to answer; 0 until a plan of the generation was seen."""
        self._generation = generation
        """Generation of a plan that answers to the version, as all later ones do, or None."""
        self._newest = 0
        """Generation of the last plan that was seen; another controller may know a newer one."""
        self._waiting: tuple[str, ...] = ()

    def done(self, plan: plan_pb2.Plan) -> bool:
        """Return whether, by this plan, no switch holds or may hold an entry of what is gone."""
        if plan.generation < self._newest:
            # The store lost its plans and counts anew, or another controller is behind.
            self._generation = None
        self._newest = plan.generation
        if self._generation is not None and plan.generation >= self._generation:
            self._version = self._version or plan.answered_version
        if self._generation is None and plan.answered_version >= self._version:
            self._generation = plan.generation
        self._waiting = tuple(plan.unsettled_switches)
        return self._generation is not None and plan.settled_generation >= self._generation

    def why_not(self) -> str:
        """Say in words what is missing."""
        if self._generation is None:
            return "no plan without it is known: see heddle show plan, and the controller's log"
        if self._newest < self._generation:
            return f"plan {self._generation} is not known yet, only plan {self._newest}"
        names = ", ".join(self._waiting)
        return f"these switches have not said that its entries are gone: {names}"
