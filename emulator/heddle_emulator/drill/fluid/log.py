"""What was seen of control in a fluid drill, and when in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
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

    def planned(self, at: float, plans: Mapping[int, plan_pb2.Plan]) -> bool:
        """What the controller has planned so far, by generation; whether any of it is new."""
        known = self.plans[-1][1].generation if self.plans else -1
        for generation in sorted(plans):
            if generation <= known:
                continue
            plan = plans[generation]
            if self.plans:
                text = f"plan {generation} committed, {plan.changed_count} flows move"
                self.tell(at, Mark.PLAN, text)
            self.plans.append((at, plan))
        return bool(plans) and max(plans) > known

    def stands(self, at: float) -> None:
        """All switches hold the newest plan."""
        self.stood.append(at)
        if self.plans:
            self.tell(at, Mark.ACK, f"plan {self.plans[-1][1].generation} stands in every switch")
