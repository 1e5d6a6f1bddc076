"""Tells when no switch holds an entry any more of something that was deleted."""

from __future__ import annotations

from heddle.v1 import plan_pb2


class Withdrawal:
    """Follows the plans of a fabric until all switches have dropped what was deleted."""

    def __init__(self, version: int, generation: int | None = None) -> None:
        """Wait for this intent version, or for a plan's generation if one is given."""
        self._version = version
        self._generation = generation
        """Generation of a plan that answers to the version, as all later ones do, or None."""
        self._waiting: tuple[str, ...] = ()

    def done(self, plan: plan_pb2.Plan) -> bool:
        """Return whether, by this plan, no switch holds or may hold an entry of what is gone."""
        if self._generation is not None and plan.generation < self._generation:
            self._generation = None  # the store lost its plans and counts generations anew
        if self._generation is None and plan.answered_version >= self._version:
            self._generation = plan.generation
        self._waiting = tuple(plan.unsettled_switches)
        return self._generation is not None and plan.settled_generation >= self._generation

    def why_not(self) -> str:
        """Say in words what is missing."""
        if self._generation is None:
            return "no plan without it is known: see heddle show plan, and the controller's log"
        names = ", ".join(self._waiting)
        return f"these switches have not said that its entries are gone: {names}"
