"""A campaign as a value: what it runs on, what is drawn, how much of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_emulator.campaign.draw import Drawing, trials
from heddle_emulator.campaign.events import Trial


@dataclass(frozen=True, slots=True, eq=False)
class Campaign:
    """Everything that a worker needs to know; goes to other processes whole."""

    name: str
    fabric: Fabric
    flows: Flows
    drawing: Drawing = Drawing()  # noqa: RUF009 - frozen
    failures: int = 1000
    datagrams: bool = False
    """Whether agents tell each other of lost links by datagrams, as on switches, or are told."""
    told: Mapping[str, Any] = field(default_factory=dict)
    """Fabric and demands as the file has them, where they came from one: for replays."""

    def trials(self) -> list[Trial]:
        """All of them, in order of their numbers."""
        return trials(self.fabric, self.drawing, self.failures)

    def fingerprint(self) -> str:
        """What two campaigns have in common whose trials of one number are the same."""
        structure, flows = self.fabric.structure, self.flows
        found = hashlib.sha256(repr((self.drawing, self.datagrams)).encode())
        found.update("\n".join(structure.nodes.ids).encode())
        arrays = (structure.links.a, structure.links.b, structure.links.gbps, self.fabric.effective)
        for array in (*arrays, flows.source, flows.destination, flows.gbps, flows.qps):
            found.update(np.ascontiguousarray(array).tobytes())
        return found.hexdigest()[:16]
