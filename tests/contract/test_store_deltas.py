"""Plans that differ little from others are stored as differences, and come back whole."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from heddle_controller.model.arrays import Ints
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.plan import Certificate, Plan
from heddle_controller.model.program import Entries, Program
from heddle_controller.plan.programs import entries_after
from heddle_controller.solve import Options, Repairer, solve
from heddle_controller.state import plans
from heddle_controller.state.codec.plans import PlanPacker, pack_delta, unpack_delta
from heddle_controller.state.plans import KEPT
from heddle_controller.state.records import Committed, PlanFacts
from heddle_controller.store.store import Store
from heddle_emulator.topology import three_tier
from tests.bench.workloads import between_switches, permutations
from tests.contract.store_worlds import EmbeddedWorld, StoreWorld
from tests.support.store_samples import plain

Made = tuple[Plan, Entries]


def two_zones() -> Fabric:
    """Two zones of 128 NICs each, so that one link is a small part of the whole."""
    return three_tier(
        zones=2, leaves=16, spines=8, nics_per_leaf=8, cores=8, taper=1.0, name="two-zones"
    )


def losses(fabric: Fabric, count: int) -> list[Made]:
    """A plan of two permutations, and its repairs while links fail and return."""
    options = Options()
    plan = solve(fabric, permutations(fabric, seed=3, sets=2), options=options)
    made = [(plan, entries_after(plan))]
    links = np.random.default_rng(5).permutation(np.flatnonzero(between_switches(fabric)))
    down: dict[int, State] = {}
    repairer = Repairer(plan, options=options)
    for turn in range(count):
        state = State.UP if turn % 3 == 2 else State.DOWN
        down[int(links[turn - turn % 3 % 2])] = state
        plan = repairer.repair(fabric.with_links(down), plan.flows)
        made.append((plan, entries_after(plan, made[-1])))
    return made


async def commit(store: Store, epoch: int, generation: int, made: Made) -> Committed:
    """Commit a plan as the given generation."""
    plan, entries = made
    return await store.commit(
        "f1",
        epoch=epoch,
        expected_generation=generation - 1,
        plan=plan,
        program=Program(epoch, generation, 1, entries),
        facts=PlanFacts(),
    )


def same(one: Committed | None, other: Committed) -> bool:
    """Whether two plans are equal in every number, except for the structure of their fabrics."""
    assert one is not None
    plans = [
        replace(c.plan, fabric=Fabric(other.plan.fabric.structure, *states(c)))
        for c in (one, other)
    ]
    figures = [
        (plain(plan), plain(c.program), c.facts)
        for plan, c in zip(plans, (one, other), strict=True)
    ]
    return figures[0] == figures[1]


def states(committed: Committed) -> tuple[Ints, Ints]:
    """The states of links and of nodes."""
    return committed.plan.fabric.link_state, committed.plan.fabric.node_state


async def test_plans_after_losses(world: StoreWorld) -> None:
    """Each plan is read back as committed, by generation too, also by the next process.

    Some plans get another certificate, stored whole or as a difference.
    """
    store = await world.open()
    await store.put_fabric("f1", two_zones())
    epoch = await store.acquire_leadership("c1")
    made = losses((await store.intent("f1")).fabric, 12)
    done: list[Committed] = []
    for row, one in enumerate(made):
        if row in (4, 9):
            await store.close()
            store = await world.open()
            assert same(await store.committed("f1"), done[-1])
            epoch = await store.acquire_leadership("c2")
        done.append(await commit(store, epoch, row + 1, one))
        assert same(await store.committed("f1"), done[-1])
        for before in done[-4:]:
            assert same(await store.committed("f1", before.generation), before)
        if row in (0, 2, 6, 8):
            better, haste = Certificate(1.0, 0.5, "lp"), row != 6
            assert await store.certify(
                "f1", epoch=epoch, generation=row + 1, certificate=better, in_haste=haste
            )
            done[-1] = replace(done[-1], plan=replace(done[-1].plan, certificate=better))
            assert same(await store.committed("f1"), done[-1])
    await store.close()


async def test_a_lost_link_is_little_to_write(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A lost link adds a small part of a whole plan to the file, which keeps only what it needs."""
    world = EmbeddedWorld(tmp_path_factory.mktemp("store"))
    store = await world.open()
    await store.put_fabric("f1", two_zones())
    epoch = await store.acquire_leadership("c1")
    made = losses((await store.intent("f1")).fabric, KEPT + 1)
    for row, one in enumerate(made):
        await commit(store, epoch, row + 1, one)
    whole = len(PlanPacker().pack(made[0][0], Program(epoch, 1, 1, made[0][1])))
    sizes = plan_sizes(world)
    assert sizes[-1] == whole
    assert len(sizes) == len(made), "each by what it changed, also those that others stand on"
    assert sum(size > whole / 8 for size in sizes) == 1
    assert sizes[0] > 0
    other = made[0][0].flows.with_qps(2)  # a plan of other flows is no delta
    plan = solve(made[0][0].fabric, other, options=Options())
    await commit(store, epoch, len(made) + 1, (plan, entries_after(plan)))
    assert sum(size > whole / 8 for size in plan_sizes(world)) == 2
    await store.close()


async def test_what_is_kept_is_made_short_again(
    world: StoreWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest plan is stored whole after many deltas, at once or when the store is asked to.

    Other processes read it as before and go on from it.
    """
    store = await world.open()
    await store.put_fabric("f1", two_zones())
    epoch = await store.acquire_leadership("c1")
    made = losses((await store.intent("f1")).fabric, 8)
    done = [await commit(store, epoch, row + 1, one) for row, one in enumerate(made[:4])]
    assert stored(store, 4) == 4
    await store.compact("f1", epoch=epoch)
    assert stored(store, 4) == 4, "there are few"
    monkeypatch.setattr(plans, "LONG_DELTAS", 3)
    await store.compact("f1", epoch=epoch)
    assert stored(store, 4) == 1
    done.append(await commit(store, epoch, 5, made[4]))
    assert stored(store, 5) == 2
    monkeypatch.setattr(plans, "MOST_DELTAS", 1)
    done.append(await commit(store, epoch, 6, made[5]))
    assert stored(store, 6) == 1
    await store.close()
    store = await world.open()
    for before in done:
        assert same(await store.committed("f1", before.generation), before)
    await store.close()


def stored(store: Store, generation: int) -> int:
    """The number of values that are read for a plan."""
    row = plans.plan_row(store.applier.view("f1"), generation)
    assert row is not None
    return len(row.blobs)


def plan_sizes(world: EmbeddedWorld) -> list[int]:
    """The sizes in bytes of all plans in the file, smallest first."""
    with closing(sqlite3.connect(world.path)) as connection:
        rows = connection.execute("SELECT length(body) FROM blobs WHERE id LIKE 'plan-%'")
        return sorted(size for (size,) in rows)


@pytest.mark.parametrize("turn", range(1, 7))
def test_a_delta_comes_back(turn: int) -> None:
    """The delta between any of these plans and the first is read back, also an empty one."""
    made = losses(two_zones(), 6)
    base = made[0][0], Program(1, 1, 1, made[0][1])
    for plan, entries in (made[0], made[turn]):
        program = Program(2, 1 + turn, 5, entries)
        packed = pack_delta((plan, program), base)
        assert packed is not None
        found = unpack_delta(packed, base)
        assert plain((found[0].paths, found[0].backups, found[0].certificate, found[1])) == plain(
            (plan.paths, plan.backups, plan.certificate, program)
        )
        assert plain(found[0].fabric.link_state) == plain(plan.fabric.link_state)
        assert found[0].unrouted == plan.unrouted
