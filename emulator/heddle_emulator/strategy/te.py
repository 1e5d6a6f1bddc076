"""Heddle itself, asked as any user would: a controller, its public API, its routes.

The controller runs in a process of its own on a store that is thrown away. It is
given the fabric and the flows as demands; what it lists as routes is then walked like
everything else. No switch is there to hold entries, so a plan counts once committed.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths
from heddle_emulator.client import Client, routed
from heddle_emulator.fleet import Controller

FABRIC, DEMANDS = "fabrics/compare", "flows"
PLAN_SECONDS = 300.0


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """What a controller answered."""

    paths: Paths
    lower_bound: float
    """Worst utilisation that no plan is below, as its certificate proves."""


def te(fabric: Fabric, flows: Flows) -> Planned:
    """Plan flows by a controller that is started for it and stopped again.

    Raises:
        ClientError, ControllerError: it did not start, or did not answer.
    """
    return asyncio.run(_planned(fabric, flows))


async def _planned(fabric: Fabric, flows: Flows) -> Planned:
    with tempfile.TemporaryDirectory(prefix="heddle-compare-") as folder:
        async with Controller(Path(folder)) as controller, Client(controller.api, FABRIC) as client:
            await client.put_fabric(fabric)
            await client.put_demands(DEMANDS, fabric, flows)
            plan = await client.committed_plan(len(flows), PLAN_SECONDS)
            _, routes = await client.routes()
            told = routed(fabric, flows, routes)
            return Planned(told.paths, plan.certificate.lower_bound)
