"""Steps as people say them, for reports of either world."""

from __future__ import annotations

from heddle_emulator.drill.scenario import Step, StepKind


def in_words(step: Step, targets: str) -> str:
    """A step and what it is done to, as people say it."""
    more = {
        StepKind.SILENCE: f", losing {step.share:.0%} of packets",
        StepKind.DEGRADE: f" to {step.gbps:g} Gbit/s",
        StepKind.SLOW: f" by {step.by * 1e3:g} ms",
        StepKind.SKEW: f" by {step.by:g} s",
        StepKind.REPLACE: f" with {step.other}",
    }
    point = f" at its next {step.point.value}" if step.point else ""
    return f"{step.kind.value} {targets}{more.get(step.kind, '')}{point}"
