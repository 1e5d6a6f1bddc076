"""The client of a lab's controller: when it takes a plan for the last one, and what it says."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import cast

import pytest

from heddle.client import HeddleError
from heddle.v1 import plan_pb2
from heddle_controller.model.fabric import State
from heddle_emulator.client import Client
from heddle_emulator.drill.lab import control
from heddle_emulator.drill.lab.control import LabClient
from heddle_emulator.netns import LabError
from heddle_emulator.netns.programs import Programs
from tests.support.waiting import PATIENCE


@dataclass
class Lab:
    """Programs of a lab in which nothing runs."""

    lab: None = None


class Controller:
    """A controller whose newest plan was made long ago, for links as they are now."""

    async def plan(self) -> plan_pb2.Plan:
        """Return the plan."""
        return plan_pb2.Plan(generation=3, links_current=True)

    async def set_switch(self, node: str, state: State) -> None:
        """Answer as a controller that is gone."""
        raise HeddleError(f"cannot reach the controller to set {node} {state}")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> LabClient:
    """A client whose watch told of the plan."""
    monkeypatch.setattr(LabClient, "api", cast("Client", Controller()))
    found = LabClient(cast("Programs", Lab()))
    plan = plan_pb2.Plan(generation=3)
    plan.commit_time.FromSeconds(100)
    plan.programmed_time.FromSeconds(101)
    found.view.take_plan(plan)
    return found


async def test_a_plan_before_a_link_went_and_returned_is_the_last(client: LabClient) -> None:
    """A link that went and came back before a plan was made for it needs no plan."""
    client.view.changed = client.view.committed + 1
    async with asyncio.timeout(PATIENCE):
        await client.settled(float("inf"))


async def test_nobody_to_tell_of_a_drain_is_told_in_words(
    client: LabClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the step and says what to do."""
    monkeypatch.setattr(control, "SERVED_SECONDS", 0.0)
    with pytest.raises(LabError, match=r"no controller was there to drain s0 for 0 s; .* first"):
        await client.drain("s0", drained=True)
