"""Pushes as trace spans below the span of their plan. Needs the extra ``traces``."""

from __future__ import annotations

from heddle.traces import Happened, Root, Spans, Value
from heddle_agent.table import Push, Receipt, Status


class PushTraces:
    """Traces of the pushes to one switch."""

    def __init__(self, endpoint: str, fabric: str, switch: str) -> None:
        self._spans = Spans(endpoint, "heddle-agent", switch)
        self._fabric, self._switch = fabric, switch

    def pushed(self, push: Push, receipt: Receipt, failed: int, times: tuple[float, float]) -> None:
        """Record the span of a push, from its arrival to its acknowledgement from the FIB.

        ``failed`` is the number of failed operations, and ``times`` are start and end.
        """
        about: dict[str, Value] = {
            "heddle.fabric": self._fabric.removeprefix("fabrics/"),
            "heddle.epoch": push.version.epoch,
            "heddle.generation": push.version.generation,
            "heddle.switch": self._switch,
            "heddle.operations": len(push.operations.matches),
            "heddle.failed_operations": failed,
        }
        taken = receipt.status is Status.APPLIED
        why = "" if taken and not failed else receipt.message or receipt.status.name.lower()
        plan = Root.of_plan(self._fabric, push.version.epoch, push.version.generation)
        self._spans.below(plan, Happened("push", *times, about, why))

    def close(self) -> None:
        """Send the spans that still wait, if that can be done soon."""
        self._spans.close()
