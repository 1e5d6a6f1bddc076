"""Steering hosts in a lab whose switches only hash: the hosts choose UDP source ports.

No part of Heddle runs on a switch here. FRR provides equal routes, and the kernel hashes. Hosts
probe which path each source port takes. ``heddle plan`` chooses a port and a spare port for every
QP. ``heddle-agent steer`` on each host leaves a path that is lost. The sender of the QPs reads the
present port from the agent's file, see ``NamedPort``. The switches' kernels count the packets.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from heddle_agent.host.trace import ROCE_PORT, Pace, Tracer, traced_document
from heddle_controller.model.arrays import Floats, Ints
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.files.plan_file import load_plan
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import phased_loads, utilization
from heddle_emulator.netns import LabError, tools, witness
from heddle_emulator.netns.kernel import inside
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.probe.spec import NamedPort, family_of
from heddle_emulator.traffic import save_flows

PROBES_PER_SECOND = 5000.0
_PATIENCE = 30.0
_PORTS_POLL_SECONDS = 0.1
_QUIET_SECONDS = 2.0
"""If no packet arrives for this long, those that are missing are lost."""


def learn(lab: Lab, flows: Flows, ports: Sequence[int]) -> dict[str, Any]:
    """Let hosts probe the paths of their ports; return the content of a port-paths.json.

    Raises:
        LabError: a host cannot probe.
    """
    cores = lab.layout.fabric.rows_of_kind(NodeKind.CORE)
    pace = Pace(hops=5 if len(cores) else 3, per_second=PROBES_PER_SECOND)
    targets: dict[int, list[int]] = {}
    for source, destination in zip(flows.source.tolist(), flows.destination.tolist(), strict=True):
        targets.setdefault(source, []).append(destination)
    pairs: list[dict[str, Any]] = []
    for source, destinations in targets.items():
        address = _address(lab, source)
        try:
            tracer = inside(_space(lab, source), lambda at=address: Tracer(at, pace))  # type: ignore[misc]
        except ValueError as error:
            raise LabError(str(error)) from error
        with tracer:
            to = [_address(lab, nic) for nic in dict.fromkeys(destinations)]
            pairs += traced_document(address, tracer.trace(to, ports))
    return {"pairs": pairs}


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """What the switches' kernels counted of some QPs."""

    utilization: Floats
    """Utilisation of each arc from a switch, as if each QP sent at its rate, shape (arcs,)."""
    arcs: list[frozenset[int]]
    """The arcs that packets of each QP took, without the one from the NIC."""


def count_packets(lab: Lab, flows: Flows, ports: Ints, packets: int = 16) -> Counted:
    """Send packets of each QP, and return where they went by the kernels' counts.

    Args:
        lab: A lab with witnesses.
        flows: Flows of which no two have the same pair of NICs.
        ports: UDP source port of each QP, by flow and then QP.
        packets: Number of packets to send for each QP.

    Raises:
        LabError: not all packets arrive, even when they are sent again.
    """
    flow = np.repeat(np.arange(len(flows)), flows.qps)
    keys = [
        (_address(lab, source), _address(lab, destination), port, ROCE_PORT)
        for source, destination, port in zip(
            flows.source[flow].tolist(),
            flows.destination[flow].tolist(),
            ports.tolist(),
            strict=True,
        )
    ]
    arcs, sources = _arc_of_port(lab), flows.source[flow].tolist()
    sent = {key: packets * keys.count(key) for key in set(keys)}
    found = _delivered(lab, arcs, sent, lambda: _send(lab, sources, keys, packets))
    used: list[int] = []
    gbps: list[float] = []
    taken: list[frozenset[int]] = []
    row: list[int] = []
    for qp, key in enumerate(keys):
        ways = {arcs[way]: n for way, n in found.packets[key].items() if n}
        taken.append(frozenset(ways))
        used += ways
        gbps += [
            float(flows.gbps[flow[qp]] / flows.qps[flow[qp]]) * n / sent[key] for n in ways.values()
        ]
        row += [int(flow[qp])] * len(ways)
    fabric = lab.layout.fabric
    loads = phased_loads(
        2 * fabric.link_count, np.array(used), np.array(gbps), flows.job[row], flows.phase[row]
    )
    return Counted(utilization(fabric, loads), taken)


def _send(
    lab: Lab, sources: Sequence[int], keys: Sequence[tuple[str, str, int, int]], packets: int
) -> None:
    """Send packets of all QPs in turns."""
    with ExitStack() as stack:
        opened: dict[tuple[str, int], socket.socket] = {}
        for source, (address, _, port, _) in zip(sources, keys, strict=True):
            if (address, port) not in opened:
                one = inside(
                    _space(lab, source),
                    lambda at=address: socket.socket(family_of(at), socket.SOCK_DGRAM),  # type: ignore[misc]
                )
                opened[address, port] = stack.enter_context(one)
                one.bind((address, port))
        for _ in range(packets):
            for address, to, port, to_port in keys:
                opened[address, port].sendto(b"heddle", (to, to_port))


def _delivered(
    lab: Lab,
    arcs: dict[tuple[str, str], int],
    sent: dict[witness.FlowKey, int],
    send: Callable[[], None],
) -> witness.Testimony:
    """Send until every packet leaves the last switch, and return what switches counted then.

    All namespaces share the kernel's queues with the rest of the machine. These may overflow and
    drop a packet. If one is lost, all packets are sent and counted again.

    Raises:
        LabError: packets still get lost after ``_PATIENCE`` seconds.
    """
    last = {arc for arc in arcs.values() if _is_last(lab, arc)}
    deadline = time.monotonic() + _PATIENCE
    while True:
        before = witness.hear(lab)
        send()
        counts: dict[witness.FlowKey, int] = {}
        arrived, quiet = -1, time.monotonic() + _QUIET_SECONDS
        while time.monotonic() < quiet:
            found = witness.hear(lab).since(before)
            counts = {
                key: sum(n for way, n in found.packets.get(key, {}).items() if arcs[way] in last)
                for key in sent
            }
            if all(counts[key] >= wanted for key, wanted in sent.items()):
                return found
            if sum(counts.values()) > arrived:
                arrived, quiet = sum(counts.values()), time.monotonic() + _QUIET_SECONDS
            time.sleep(_PORTS_POLL_SECONDS)
        if time.monotonic() > deadline:
            missing = [key for key, wanted in sent.items() if counts.get(key, 0) < wanted]
            raise LabError(
                f"packets of {len(missing)} of {len(sent)} ports did not arrive: {missing[:1]}"
            )


def _arc_of_port(lab: Lab) -> dict[tuple[str, str], int]:
    """Return the arc that leaves a switch by an interface, by (switch, interface)."""
    return {
        (port.node, port.name): 2 * cable.link + side
        for cable in lab.layout.cables
        for side, port in enumerate(cable.ends)
        if port.namespace == port.node
    }


def _is_last(lab: Lab, arc: int) -> bool:
    fabric = lab.layout.fabric
    return fabric.structure.nodes.ids[fabric.structure.head[arc]] in lab.layout.nic_port


def _address(lab: Lab, nic: int) -> str:
    return lab.layout.fabric.structure.nodes.address[nic]


def _space(lab: Lab, nic: int) -> str:
    return lab.spaces[lab.layout.nic_port[lab.layout.fabric.structure.nodes.ids[nic]].namespace]


RECHECK_SECONDS = 1.0
_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class PlannedPorts:
    """The choice of ``heddle plan``. All fields are in order of flows, and then of QPs."""

    ports: Ints
    """The source port of each QP."""
    backups: Ints
    """The spare source port of each QP; 0 if it has none."""
    ways: list[list[int]]
    """The arcs that each QP is to take, without the one from its NIC."""


def plan_by_ports(lab: Lab, flows: Flows, learned: dict[str, Any]) -> PlannedPorts:
    """Let ``heddle plan`` choose ports. It leaves plan.json in the lab's folder.

    Raises:
        LabError: ``heddle plan`` fails.
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
    """All hosts that send flows. An agent on each steers from construction until ``end``."""

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
            lab: A lab whose switches all hash.
            flows: Flows of which no two have the same pair of NICs.
            ports: UDP source ports to choose from.
            hold_seconds: How long a path has to be back before QPs return to it.
            probe_milliseconds: How often hosts probe each path in use, and each spare one.

        Raises:
            LabError: hosts cannot probe, or ``heddle plan`` fails.
        """
        self.flows = flows
        self.planned = plan_by_ports(lab, flows, learn(lab, flows, ports))
        self.folder = lab.folder / f"steer-{hold_seconds:g}"
        self.folder.mkdir(exist_ok=True)
        ids = lab.layout.fabric.structure.nodes.ids
        self.host_of = [lab.layout.nic_port[ids[row]].namespace for row in flows.source.tolist()]
        self.hosts = list(dict.fromkeys(self.host_of))
        self._processes: list[int] = []
        self._lab = lab
        self._options = [f"--{file}={lab.folder / file}.json" for file in ("fabric", "plan")]
        self._options += [f"--hold-seconds={hold_seconds:g}"]
        self._options += [f"--recheck-seconds={RECHECK_SECONDS:g}"]
        self._options += [f"--probe-milliseconds={probe_milliseconds}"]
        self.start()

    def start(self) -> None:
        """Start the agents, after ``end`` again, without what earlier ones have written."""
        for host in self.hosts:
            shutil.rmtree(self.folder / host, ignore_errors=True)
            self._log(host).unlink(missing_ok=True)
            words = [f"--host={host}", f"--directory={self.folder / host}", *self._options]
            command = [_program("heddle-agent"), "steer", *words]
            space = self._lab.spaces[host]
            self._processes.append(tools.start_inside(space, command, self._log(host)))

    def ready(self, seconds: float) -> None:
        """Wait until every path answers, and every QP has the port that was planned for it.

        Raises:
            LabError: one of the two took longer than ``seconds``. It has the last log lines.
        """
        self._until(lambda: self.logged("every path answers"), seconds)
        self._until(lambda: not self.lost() and self.told() == self.planned.ports.tolist(), seconds)

    def told(self) -> list[int]:
        """Return the present port of each QP, by flow and then QP."""
        return self.of_flows("ports")

    def lost(self) -> list[Any]:
        """Return the paths that hosts do not trust now, whether they are used or not."""
        files = [json.loads(path.read_text()) for path in self.folder.glob("*/plan.json")]
        return [path for file in files for path in file["lost"]]

    def of_flows(self, name: str) -> list[Any]:
        """Return the values of a list in the agents' files, by flow and then by position."""
        found: dict[str, list[Any]] = {}
        for path in self.folder.glob("*/plan.json"):
            for flow in json.loads(path.read_text())["flows"]:
                found[flow["flow"]] = [*flow[name]]
        return [value for flow in self.flows.ids for value in found.get(flow, [])]

    def logged(self, words: str) -> bool:
        """Return whether the log of every host has these words."""
        return all(words in self._log(host).read_text() for host in self.hosts)

    def named_ports(self, row: int) -> list[NamedPort]:
        """Return for each QP of a flow where its port is found, and which ports it may be."""
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
