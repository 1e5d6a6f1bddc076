"""Hosts send from the ports that their agents wrote, and kernels show the paths."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from heddle_controller.model.demand import resolve
from heddle_controller.model.flows import ROCE_PORT
from heddle_emulator.drill.lab.control import LabClient
from heddle_emulator.drill.lab.probes import Pathfinder
from heddle_emulator.netns import tools
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.layout import MGMT
from heddle_emulator.netns.probe.handle import probe_flow
from heddle_emulator.netns.programs import FABRIC, Programs
from heddle_emulator.topology import clos
from tests.integration.demanding import demands_of
from tests.integration.labbing import small_lab
from tests.support.waiting import PATIENCE, wait_until

PAIRS = tuple((f"l0-h{host}-n0", f"l1-h{host}-n0") for host in range(3))
QPS = 4
AGENT = str(Path(sys.executable).with_name("heddle-agent"))


def host_agent(lab: Lab, programs: Programs, host: str) -> Path:
    """Start the agent of a host; return the folder that it writes to."""
    folder = lab.folder / f"ports-{host}"
    command = [AGENT, "host", f"--fabric={FABRIC}", f"--host={host}", "--insecure"]
    command += [f"--controller={programs.api}", f"--directory={folder}"]
    tools.start_inside(lab.spaces[MGMT], command, lab.folder / f"host-{host}.log")
    return folder


async def planned(lab: Lab, programs: Programs) -> dict[tuple[str, int], str]:
    """Return the spine of each QP. Three flows at line rate share two spines, so one is split."""
    demands = replace(demands_of(PAIRS), qps=np.full(len(PAIRS), QPS, dtype=np.int64))
    async with LabClient(programs) as control:
        await control.demand(resolve(demands, lab.layout.fabric, origin="test"), PATIENCE)
        _, routes = await control.api.list_routes()
    return {
        (route.source, qp): path.nodes[2]
        for route in routes
        for path in route.paths
        for qp in range(path.first_qp, path.last_qp + 1)
    }


def written(folder: Path) -> dict[str, Any]:
    """Wait for the ports file of the one job; return its content."""
    path = folder / "test.json"
    wait_until(path.exists, str(path))
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_each_qp_takes_its_planned_path_from_the_port_its_host_was_told() -> None:
    """Each of twelve QPs of three flows, one of them split, passes its planned spine."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=3, nics_per_host=1)
    with small_lab(programs=True, fabric=fabric) as (lab, programs):
        assert programs is not None
        folders = [host_agent(lab, programs, source.rpartition("-")[0]) for source, _ in PAIRS]
        wanted = asyncio.run(planned(lab, programs))
        assert Counter(wanted.values()) == {"s0": 6, "s1": 6}
        # A host may still have the ports of an earlier plan.
        wait_until(lambda: taken(lab, folders) == wanted, "the planned paths")


def taken(lab: Lab, folders: Sequence[Path]) -> dict[tuple[str, int], str]:
    """Return the spine that packets of each QP pass, from the port that its host was told."""
    streams, found = {}, {}
    for folder in folders:
        (flow,) = written(folder)["flows"]
        nics = flow["source"], flow["destination"]
        assert flow["source_address"] == lab.layout.address(flow["source"])
        for qp, port in enumerate(flow["ports"]):
            streams[flow["source"], qp] = probe_flow(lab, nics, (port, ROCE_PORT), 1.0)
    ways = Pathfinder(lab).ways(list(streams.values()))
    for qp_of, way in zip(streams, ways, strict=True):
        cables = [lab.layout.cables[row] for row in way]
        ends = [{cable.a.node, cable.b.node} for cable in cables]
        (found[qp_of],) = ends[1] & ends[2]
    return found
