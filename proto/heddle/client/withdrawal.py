"""When no switch holds an entry of what was deleted."""

from __future__ import annotations

from heddle.v1 import plan_pb2


class Withdrawal:
    """How far a fabric is from an intent in which something is gone, by its plans as they come."""

    def __init__(self, version: int, generation: int | None = None) -> None:
        """``version`` is that of the intent; ``generation`` of a plan that answers to it."""
        self._version = version
        self._generation = generation
        """Of a plan that answers to the version, as all later ones do; None before the first."""
        self._waiting: tuple[str, ...] = ()

    def done(self, plan: plan_pb2.Plan) -> bool:
        """Whether, by this plan, no switch holds or may hold an entry of what is gone."""
        if self._generation is not None and plan.generation < self._generation:
            self._generation = None  # the store lost its plans, and counts them anew
        if self._generation is None and plan.answered_version >= self._version:
            self._generation = plan.generation
        self._waiting = tuple(plan.unsettled_switches)
        return self._generation is not None and plan.settled_generation >= self._generation

    def why_not(self) -> str:
        """What is waited for, in words."""
        if self._generation is None:
            return "no plan without it is known: see heddle show plan, and the controller's log"
        names = ", ".join(self._waiting)
        return f"these switches have not said that its entries are gone: {names}"
