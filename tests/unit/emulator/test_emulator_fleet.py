"""A fleet without a controller: what agents do on their own when links and switches fail."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from heddle_agent.fib import Link, NextHop, Packet
from heddle_agent.table import Fence, Mode, Operations, Push, Status
from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import State
from heddle_emulator.drill.live import LiveFabric
from heddle_emulator.drill.scenario import CableName, Step, StepKind, Target
from heddle_emulator.drill.steps import StepRunner
from heddle_emulator.fleet import Fleet
from heddle_emulator.topology import clos
from heddle_emulator.traffic import flows_between
from heddle_emulator.walk import Walk, walk
from tests.support.waiting import until

FABRIC = clos(leaves=4, spines=4, nics_per_leaf=4, parallel=2)
FLOWS = flows_between(FABRIC, "shift", qps=32)
NOBODY = "127.0.0.1:9"
"""The discard port, where nothing of the test listens."""


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    """Run the agents of all 8 switches, which find no controller."""
    async with Fleet(FABRIC, [NOBODY], seed=5) as running:
        yield running


def _walk(fleet: Fleet) -> Walk:
    return walk(fleet.world, FLOWS, fleet.switches)


def _lost(fleet: Fleet) -> int:
    return len(_walk(fleet).lost)


async def test_agents_leave_out_their_own_dead_links(fleet: Fleet) -> None:
    """Leaf and spine use the parallel link at once.

    Nothing is lost, though BGP has not converged.
    """
    before = _walk(fleet)
    await fleet.set_link("l0", "s1", 0, up=False)
    (dead,) = FABRIC.find_links("l0", "s1", 0)
    after = _walk(fleet)
    assert (before.arcs >> 1 == dead).any()
    assert not (after.arcs >> 1 == dead).any()
    assert len(after.lost) == 0


async def test_steps_know_the_fabric_as_it_was_built(fleet: Fleet) -> None:
    """A cut takes a link from the world, and leaves the fabric that steps are worked out on."""
    live = LiveFabric(fleet)
    (row,) = FABRIC.find_links("l0", "s1", "1")
    await live.cut([row])
    assert not fleet.world.carries[2 * row]
    assert live.fabric.carries.all()
    await live.mend([row])
    assert fleet.world.carries.all()


async def test_far_ends_need_to_be_told(fleet: Fleet) -> None:
    """A spine cut off from a leaf drops what others send there, until BGP has converged."""
    await fleet.set_link("l3", "s2", None, up=False)
    lost = _walk(fleet).lost
    assert len(lost)
    assert set(_walk(fleet).last[lost].tolist()) == {FABRIC.structure.index["s2"]}
    fleet.converge()
    assert _lost(fleet) == 0


async def test_notices_turn_flows_aside_far_from_the_failure() -> None:
    """After a notice, leaves use their backups. Once the link is mended, they return.

    There is no controller, and BGP does not converge. The spine's notice reaches every leaf with a
    flow at risk, and an agent that starts during the failure learns of it.
    """
    async with Fleet(FABRIC, [NOBODY], seed=5, notices=True) as running:
        await met(running)
        await running.set_link("l3", "s3", 1, up=False)
        for leaf in ("l0", "l1", "l2"):
            pinned(running, leaf, "l3-h0-n0", primary="s2", backup="s0", risk=("l3", "s2"))
        before = hops_towards(running, "l3-h0-n0")
        await running.set_link("l3", "s2", None, up=False)
        during = hops_towards(running, "l3-h0-n0")
        assert before == dict.fromkeys(("l0", "l1", "l2"), "s2")
        assert during == dict.fromkeys(("l0", "l1", "l2"), "s0")
        await running.stop(FABRIC.structure.index["l1"])
        running.boot(FABRIC.structure.index["l1"])
        await met(running)
        pinned(running, "l1", "l3-h0-n0", primary="s2", backup="s0", risk=("l3", "s2"))
        assert hops_towards(running, "l3-h0-n0") == during
        await running.set_link("l3", "s2", None, up=True)
        assert hops_towards(running, "l3-h0-n0") == before


async def met(fleet: Fleet) -> None:
    """Wait until all agents know their neighbours and agree on all links."""
    agents = [agent.peer_notices for agent in fleet.agents.values() if agent.peer_notices]
    await until(
        lambda: all(notices.introduced == len(notices.peers) for notices in agents), "greetings"
    )
    await until(lambda: len({notices.records.summary for notices in agents}) == 1, "agreement")


def pinned(
    fleet: Fleet, leaf: str, nic: str, *, primary: str, backup: str, risk: tuple[str, str]
) -> None:
    """Give a leaf an entry with a risk link, as a controller would."""
    key = (NextHop(primary), NextHop(backup), (Link.between(*risk), Link.between(*risk, "1")), ())
    operations = Operations([(f"{leaf}-h0-n0", nic, 0, 0)], [0], [key])
    push = Push(Mode.INCREMENTAL, Fence(1, 1), operations=operations)
    forwarding = fleet.agents[FABRIC.structure.index[leaf]].forwarding
    assert forwarding.receive(push).status is Status.APPLIED
    assert forwarding.program(push) == []


def hops_towards(fleet: Fleet, nic: str) -> dict[str, str]:
    """Return the neighbour to which each leaf sends a packet from its first NIC."""
    found = {}
    for leaf in ("l0", "l1", "l2"):
        fib = fleet.switches.fibs[FABRIC.structure.index[leaf]]
        hop = fib.lookup(Packet(f"{leaf}-h0-n0", nic, 50000))
        assert hop is not None
        found[leaf] = hop.node
    return found


def _step(kind: StepKind, *targets: Target) -> Step:
    return Step(0.0, kind, targets)


async def test_a_mended_link_is_used_again(fleet: Fleet) -> None:
    """After the repair, every packet goes as before the fault."""
    before = _walk(fleet)
    steps, cables = StepRunner(LiveFabric(fleet)), (CableName("l3", "s2"), CableName("l1", "s0"))
    await steps.do(_step(StepKind.CUT, *cables))
    fleet.converge()
    assert (_walk(fleet).arcs != before.arcs).any()
    await steps.do(_step(StepKind.MEND, *cables))
    fleet.converge()
    assert (_walk(fleet).arcs == before.arcs).all()


async def test_a_spine_without_power(fleet: Fleet) -> None:
    """All its neighbours see the loss, so nothing is lost. It comes back as it was before."""
    before = _walk(fleet)
    spine = FABRIC.structure.index["s1"]
    steps, cable = StepRunner(LiveFabric(fleet)), CableName("l0", "s1", "1")
    await steps.do(_step(StepKind.CUT, cable))
    await steps.do(_step(StepKind.CRASH, "s1"))
    during = _walk(fleet)
    assert len(during.lost) == 0
    assert not (FABRIC.structure.head[during.arcs[during.arcs >= 0]] == spine).any()
    await steps.do(_step(StepKind.REBOOT, "s1"))
    assert int((fleet.world.effective == State.DOWN).sum()) == 1
    await steps.do(_step(StepKind.MEND, cable))
    fleet.converge()
    assert (_walk(fleet).arcs == before.arcs).all()


async def test_a_stopped_agent_sees_nothing(fleet: Fleet) -> None:
    """A leaf whose agent is stopped goes on sending over a link that is gone."""
    leaf = FABRIC.structure.index["l0"]
    await fleet.stop(leaf)
    await fleet.stop(leaf)
    await fleet.set_link("l0", "s1", None, up=False)
    lost = _walk(fleet).lost
    assert set(_walk(fleet).last[lost].tolist()) >= {leaf}
    fleet.boot(leaf)
    fleet.converge()
    assert _lost(fleet) == 0


async def test_links_that_are_down_from_the_start() -> None:
    """Agents of a fabric that is damaged from the start know it at once."""
    damaged = FABRIC.with_links(dict.fromkeys(FABRIC.find_links("l0", "s1"), State.DOWN))
    async with Fleet(damaged, [NOBODY]) as running:
        assert _lost(running) == 0


async def test_nobody_connects_to_nothing(fleet: Fleet) -> None:
    """Waiting for sessions that cannot come ends with a time-out."""
    counts: list[tuple[int, int]] = []
    with pytest.raises(TimeoutError):
        await fleet.connected(0.1, lambda *count: counts.append(count))
    assert counts == [(0, 8)]


async def test_an_unknown_link_is_refused(fleet: Fleet) -> None:
    """The error names the link."""
    with pytest.raises(InputError, match="l0,l1"):
        await fleet.set_link("l0", "l1", None, up=False)


async def test_a_link_of_a_switch_without_power_stays_down(fleet: Fleet) -> None:
    """A cable that is mended meanwhile carries only after the switch is back."""
    steps, cable = StepRunner(LiveFabric(fleet)), CableName("l0", "s1", "1")
    (row,) = FABRIC.find_links("l0", "s1", "1")
    for kind, target, carries in (
        (StepKind.CUT, cable, False),
        (StepKind.CRASH, "s1", False),
        (StepKind.MEND, cable, False),
        (StepKind.REBOOT, "s1", True),
    ):
        await steps.do(_step(kind, target))
        assert bool(fleet.world.carries[2 * row]) == carries, kind
