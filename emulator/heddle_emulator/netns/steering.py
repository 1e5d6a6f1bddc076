"""Hosts of a lab that choose UDP source ports, where switches only hash: no agent on any switch.

Hosts probe which path each port takes, ``heddle plan`` chooses a port and a spare one for every QP,
and ``heddle-agent steer`` on each host leaves a path that is lost. What has the QPs reads the port
to use now from the agent's file, as ``NamedPort`` says.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heddle_controller.model.arrays import Ints
from heddle_controller.model.files.plan_parse import load_plan
from heddle_controller.model.flows import Flows
from heddle_emulator.netns import LabError, tools
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.ports import learn
from heddle_emulator.netns.probe.spec import NamedPort
from heddle_emulator.traffic import save_flows

RECHECK_SECONDS = 1.0
_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class PlannedPorts:
    """What ``heddle plan`` chose, by flow and then by QP."""

    ports: Ints
    backups: Ints
    """Ports of the backups; 0 where there is none."""
    ways: list[list[int]]
    """Arcs that each QP is to take after its NIC's."""


def plan_by_ports(lab: Lab, flows: Flows, learned: dict[str, Any]) -> PlannedPorts:
    """Have ``heddle plan`` choose ports; it leaves plan.json in the lab's folder.

    Raises:
        LabError: there is no plan for all flows.
    """
    folder, fabric = lab.folder, lab.layout.fabric
    (folder / "port-paths.json").write_text(json.dumps(learned))
    save_flows(fabric, flows, folder / "flows.csv")
    files = {"fabric": "fabric.json", "flows": "flows.csv", "port-paths": "port-paths.json"}
    out = folder / "plan.json"
    command = [_program("heddle"), "plan", f"--out={out}"]
    command += [f"--{option}={folder / file}" for option, file in files.items()]
    done = subprocess.run(command, text=True, capture_output=True, check=False)
    if done.returncode:
        raise LabError(f"heddle plan failed: {(done.stderr or done.stdout).strip()}")
    routes = {route["flow"]: route for route in json.loads(out.read_text())["routes"]}
    ports, backups = list[int](), list[int]()
    for flow in flows.ids:
        paths = routes[flow]["paths"]
        for path, spare in zip(paths, routes[flow]["backups"] or [{}] * len(paths), strict=True):
            ports += path["ports"]
            backups += spare.get("ports") or [0] * len(path["ports"])
    chosen = load_plan(out, fabric, flows).paths
    ways = [
        chosen.of(row)[1:].tolist()
        for row in range(len(chosen))
        for _ in range(int(chosen.qp_count[row]))
    ]
    return PlannedPorts(np.array(ports), np.array(backups), ways)


class SteeringHosts:
    """Every host that sends flows steers by itself, from when this is made until ``end``."""

    def __init__(
        self,
        lab: Lab,
        flows: Flows,
        ports: Sequence[int],
        *,
        hold_seconds: float,
        probe_milliseconds: int,
    ) -> None:
        """Probe these ports of each pair of NICs, plan, and start an agent on each host.

        Args:
            lab: Its switches all hash.
            flows: No two of one pair of NICs.
            ports: UDP source ports to choose from.
            hold_seconds: How long a path that is back has to live before QPs return to it.
            probe_milliseconds: How often hosts probe each path in use, and each spare one.

        Raises:
            LabError: hosts cannot probe, there is no plan, or an agent does not run.
        """
        self.flows = flows
        self.planned = plan_by_ports(lab, flows, learn(lab, flows, ports))
        self.folder = lab.folder / f"steer-{hold_seconds:g}"
        self.folder.mkdir(exist_ok=True)
        ids, files = lab.layout.fabric.structure.nodes.ids, ("fabric", "plan")
        self.host_of = [lab.layout.nic_port[ids[row]].namespace for row in flows.source.tolist()]
        self.hosts = list(dict.fromkeys(self.host_of))
        self._processes: list[int] = []
        for host in self.hosts:
            self._log(host).unlink(missing_ok=True)
            words = [f"--{file}={lab.folder / file}.json" for file in files]
            words += [f"--host={host}", f"--directory={self.folder / host}"]
            words += [f"--hold-seconds={hold_seconds:g}", f"--recheck-seconds={RECHECK_SECONDS:g}"]
            words += [f"--probe-milliseconds={probe_milliseconds}"]
            command = [_program("heddle-agent"), "steer", *words]
            self._processes.append(tools.start_inside(lab.spaces[host], command, self._log(host)))

    def ready(self, seconds: float) -> None:
        """Wait until every path answers, and every QP is told the port that was planned for it.

        Raises:
            LabError: not after so many seconds, or an agent has ended; with its last words.
        """
        self._until(lambda: self.logged("every path answers"), seconds)
        self._until(lambda: not self.lost() and self.told() == self.planned.ports.tolist(), seconds)

    def told(self) -> list[int]:
        """The port of each QP that its host is told now, by flow and then QP."""
        return self.of_flows("ports")

    def lost(self) -> list[Any]:
        """Paths that hosts do not trust, in use or not."""
        files = [json.loads(path.read_text()) for path in self.folder.glob("*/plan.json")]
        return [path for file in files for path in file["lost"]]

    def of_flows(self, name: str) -> list[Any]:
        """What the agents' files say under a name, by flow and then by place in the list."""
        found: dict[str, list[Any]] = {}
        for path in self.folder.glob("*/plan.json"):
            for flow in json.loads(path.read_text())["flows"]:
                found[flow["flow"]] = [*flow[name]]
        return [value for flow in self.flows.ids for value in found.get(flow, [])]

    def logged(self, words: str) -> bool:
        """Whether every host has said so."""
        return all(words in self._log(host).read_text() for host in self.hosts)

    def named_ports(self, row: int) -> list[NamedPort]:
        """Where the port of each QP of a flow is told, and which ports that may be."""
        first = int(self.flows.qps[:row].sum())
        file = str(self.folder / self.host_of[row] / "plan.json")
        either = np.stack([self.planned.ports, self.planned.backups], axis=1).tolist()
        return [
            NamedPort(file, self.flows.ids[row], place, tuple({*either[qp]} - {0}))
            for place, qp in enumerate(range(first, first + int(self.flows.qps[row])))
        ]

    def end(self) -> None:
        """End all agents."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, 0)
        self._processes.clear()

    def _log(self, host: str) -> Path:
        return self.folder / f"{host}.log"

    def _until(self, holds: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                words = [self._log(host).read_text()[-200:] for host in self.hosts]
                raise LabError(f"hosts did not steer after {seconds:g} s: {words}")
            time.sleep(_POLL_SECONDS)


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))
