"""What can be measured in a drill, its unit, and how it is written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measure:
    """One kind of number that a run yields."""

    about: str
    unit: str
    """"s", "packets", "share", "flows"; how a value in a file is read and shown."""
    per_probe: bool = True

    def show(self, value: float) -> str:
        """A value as people write it."""
        if self.unit == "s":
            return "never" if value == float("inf") else f"{value * 1e3:.1f} ms"
        return f"{value:.3f}" if self.unit == "share" else f"{value:g}"


MEASURES = {
    "lost": Measure("packets lost", "packets"),
    "recovered": Measure("from the fault to the first packet after the last that was lost", "s"),
    "stranded": Measure("probes that still lose packets at the end", "flows"),
    "looped": Measure("packets that passed a switch twice", "packets"),
    "delivered": Measure("what came over what was sent", "share"),
    "slowest": Measure("least rate of any of the probes over its offer", "share"),
    "carried": Measure("rate of all the probes together over their offer", "share"),
    "up": Measure("from nothing to a lab with BGP converged and agents", "s", per_probe=False),
    "entries": Measure("entries of the plan over all switches", "flows", per_probe=False),
    "moved": Measure("flows that the plan moved", "flows", per_probe=False),
    "detected": Measure("from the fault until an agent saw it", "s", per_probe=False),
    "notified": Measure("until the controller had the report", "s", per_probe=False),
    "solved": Measure("until the new plan was committed", "s", per_probe=False),
    "acked": Measure("until every agent had acknowledged it", "s", per_probe=False),
}
"""By the word that files use."""
