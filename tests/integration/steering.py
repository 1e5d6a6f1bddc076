"""Hosts of a lab that steer by themselves, no agent on any switch."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from heddle_controller.model.demand import resolve
from heddle_emulator.demo.nic import plan_by_ports
from heddle_emulator.netns import tools
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.ports import learn
from tests.integration.demanding import demands_of
from tests.support.waiting import wait_until

AGENT = str(Path(sys.executable).with_name("heddle-agent"))
PORTS = range(49152, 49168)


class Steered:
    """Two hosts of one leaf that send to two of another, each steering by itself."""

    def __init__(self, lab: Lab, hold: float, probe_milliseconds: int = 200, qps: int = 2) -> None:
        """Probes are as rare by default as a machine wants that is silent for 60 ms at times."""
        pairs = [(f"l0-h{host}-n0", f"l1-h{host}-n0") for host in range(2)]
        demands = replace(demands_of(pairs), qps=np.full(len(pairs), qps, dtype=np.int64))
        self.flows = resolve(demands, lab.layout.fabric, origin="test")
        self.planned = plan_by_ports(lab, self.flows, learn(lab, self.flows, PORTS))
        self.folder = lab.folder / f"steer-{hold:g}"
        self.folder.mkdir()
        files = [f"--fabric={lab.folder / 'fabric.json'}", f"--plan={lab.folder / 'plan.json'}"]
        self.hosts = [lab.layout.nic_port[source].namespace for source, _ in pairs]
        for host in self.hosts:
            words = [f"--host={host}", f"--directory={self.folder / host}"]
            words += [f"--hold-seconds={hold}", "--recheck-seconds=1"]
            words += [f"--probe-milliseconds={probe_milliseconds}"]
            command = [AGENT, "steer", *files, *words]
            tools.start_inside(lab.spaces[host], command, self.folder / f"{host}.log")
        for host in self.hosts:
            log = self.folder / f"{host}.log"
            wait_until(lambda log=log: "every path answers" in log.read_text(), host)  # type: ignore[misc]

    def told(self) -> list[int]:
        """The port of each QP that its host is told now, by flow and then QP."""
        return self._of_flows("ports")

    def astray(self) -> set[tuple[str, int]]:
        """Ports that were met off their paths, by the address that they leave."""
        return set(self._of_flows("astray", with_source=True))

    def lost(self) -> list[Any]:
        """Paths that hosts do not trust, in use or not."""
        files = [json.loads(path.read_text()) for path in self.folder.glob("*/plan.json")]
        return [path for file in files for path in file["lost"]]

    def _of_flows(self, name: str, *, with_source: bool = False) -> list[Any]:
        found: dict[str, list[Any]] = {}
        for path in self.folder.glob("*/plan.json"):
            for flow in json.loads(path.read_text())["flows"]:
                source = flow["source_address"]
                found[flow["flow"]] = [(source, v) if with_source else v for v in flow[name]]
        return [value for flow in self.flows.ids for value in found.get(flow, [])]

    def logged(self, words: str) -> bool:
        """Whether every host has said so."""
        return all(words in (self.folder / f"{host}.log").read_text() for host in self.hosts)
