"""How eager and how patient the controller is; read from outside by the wiring."""

from __future__ import annotations

from dataclasses import dataclass, field

from heddle_controller.reconcile.rollout.driver import RolloutSettings


@dataclass(frozen=True, slots=True)
class ReconcileSettings:
    """All times in seconds."""

    holder: str = "controller"
    """This replica's name, for people."""
    debounce: float = 0.005
    """Changes that follow one another so closely are planned as one..."""
    debounce_most: float = 0.1
    """...but none waits longer than this for those that follow, and the first after so much quiet
    does not wait at all."""
    retry_first: float = 1.0
    """Until planning is tried again after it failed; twice as long each time."""
    retry_last: float = 60.0
    """The longest until it is tried again."""
    compare_after: float = 1.0
    """Of quiet, until a plan is compared with one made anew."""
    worth_moving: float = 0.02
    """How much fuller than in another plan the worst link is, for flows to move that need not."""
    found_pace: float = 1.0
    """Between two plans that only follow flows that nobody announced."""
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
