"""What was seen of control in a fluid drill, and when in virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field

from heddle.v1 import plan_pb2
from heddle_emulator.report.evidence import Event, Mark


@dataclass(slots=True)
class Log:
    """One run's; times in virtual seconds."""

    events: list[Event] = field(default_factory=list)
    plans: list[tuple[float, plan_pb2.Plan]] = field(default_factory=list)
    """Each generation, and when it was committed; the first is that before the run."""
    seen: list[float] = field(default_factory=list)
    """When agents saw links change."""
    told: list[float] = field(default_factory=list)
    """When reports of that came to the controller."""
    stood: list[float] = field(default_factory=list)
    """When the controller had nothing left to do, after it had some."""

    def tell(self, at: float, mark: Mark, text: str, target: str = "") -> None:
        """Note an event."""
        self.events.append(Event(at, mark, text, target))

    def plan(self, at: float, plan: plan_pb2.Plan | None) -> None:
        """The controller's newest plan, if it is another one than before."""
        if plan is None or (self.plans and self.plans[-1][1].generation >= plan.generation):
            return
        if self.plans:
            text = f"plan {plan.generation} committed, {plan.changed_count} flows move"
            self.tell(at, Mark.PLAN, text)
        self.plans.append((at, plan))

    def stands(self, at: float) -> None:
        """All switches hold the newest plan."""
        self.stood.append(at)
        if self.plans:
            self.tell(at, Mark.ACK, f"plan {self.plans[-1][1].generation} stands in every switch")
