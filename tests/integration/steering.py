"""Hosts of a lab that steer their flows themselves; no switch has an agent."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from heddle_controller.model.demand import resolve
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.steering import SteeringHosts
from tests.integration.demanding import demands_of
from tests.support.waiting import PATIENCE

AGENT = str(Path(sys.executable).with_name("heddle-agent"))
PORTS = range(49152, 49168)


class Steered(SteeringHosts):
    """Two hosts of one leaf that each send a flow to a host of another and steer it themselves."""

    def __init__(self, lab: Lab, hold: float, probe_milliseconds: int = 200, qps: int = 2) -> None:
        """Start the hosts; by default they probe seldom, as a busy machine may pause for 60 ms."""
        pairs = [(f"l0-h{host}-n0", f"l1-h{host}-n0") for host in range(2)]
        demands = replace(demands_of(pairs), qps=np.full(len(pairs), qps, dtype=np.int64))
        flows = resolve(demands, lab.layout.fabric, origin="test")
        super().__init__(
            lab, flows, PORTS, hold_seconds=hold, probe_milliseconds=probe_milliseconds
        )
        self.ready(PATIENCE)

    def astray(self) -> set[tuple[str, int]]:
        """Return the ports found to lead off their paths, each as (source address, port)."""
        files = [json.loads(path.read_text()) for path in self.folder.glob("*/plan.json")]
        flows = [flow for file in files for flow in file["flows"]]
        return {(flow["source_address"], port) for flow in flows for port in flow["astray"]}
