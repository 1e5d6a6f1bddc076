"""Heddle itself as a strategy: a controller, an agent for every switch, and their tables.

The controller runs in a process of its own with a temporary store. It gets the fabric and the
flows, as demands, over its public API. The agents all run in this process and connect as they would
from switches. Once every switch holds the plan, packets are walked through the agents' tables. So
the measurement shows what the tables forward, not what the plan says.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths
from heddle_emulator.client import Client
from heddle_emulator.fleet import Controller, Fleet
from heddle_emulator.fleet.agents import agent_logs
from heddle_emulator.hosts import told_hosts
from heddle_emulator.walk import walk

_FABRIC, _DEMANDS = "fabrics/compare", "flows"
_PATIENCE_SECONDS = 300.0


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """What a controller planned, and the paths that packets took."""

    paths: Paths
    lower_bound: float
    """The plan's certificate proves that no plan has a worst utilisation below this."""
    routed: int
    """Number of flows that the plan has a path for."""


def te(fabric: Fabric, flows: Flows, seed: int = 0) -> Planned:
    """Plan flows and program the plan; ``seed`` sets the hashes of the underlay.

    Raises:
        HeddleError, ControllerError: The controller did not start, or did not answer.
        TimeoutError: A switch did not get to hold the plan.
    """
    return asyncio.run(_planned(fabric, flows, seed))


async def _planned(fabric: Fabric, flows: Flows, seed: int) -> Planned:
    with tempfile.TemporaryDirectory(prefix="heddle-compare-") as name, agent_logs(Path(name)):
        async with (
            Controller(Path(name)) as controller,
            Client(controller.api, _FABRIC) as client,
        ):
            await client.put_fabric(fabric)
            async with Fleet(fabric, [controller.api], name=_FABRIC, seed=seed) as fleet:
                await fleet.connected(_PATIENCE_SECONDS)
                await client.put_demands(_DEMANDS, fabric, flows)
                plan = await client.committed_plan(len(flows), _PATIENCE_SECONDS)
                plan = await client.programmed_plan(plan.generation - 1, _PATIENCE_SECONDS)
                fleet.switches.hosts = await told_hosts(fabric, client)
                paths = walk(fabric, flows, fleet.switches).paths()
                return Planned(paths, plan.certificate.lower_bound, plan.routed_count)
