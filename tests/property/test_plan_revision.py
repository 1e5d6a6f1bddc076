"""Entries derived from those of an earlier plan equal entries made anew."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.arrays import NONE
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.flows import Flows, concatenate
from heddle_controller.model.job import Job, Parallelism
from heddle_controller.model.kept import kept_flows, plan_with_kept
from heddle_controller.model.plan import Paths, Plan, arc_loads, differing, join_paths, no_paths
from heddle_controller.model.program import COLUMNS, Entries, known_edit
from heddle_controller.plan import programs
from heddle_controller.plan.diff import changed_flows, difference, partners
from heddle_controller.plan.kept import kept_of
from heddle_controller.plan.programs import entries_after, entries_of
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import Repairer, solve
from heddle_controller.traffic.jobs import flows_of_job
from heddle_emulator.topology import clos, three_tier
from tests.bench.workloads import between_switches, permutations
from tests.support.depth import examples
from tests.support.plan_chance import random_fabric, random_plan, with_failures
from tests.support.solve_flows import Row, flows_of, nic_ids

ALL = (*COLUMNS, "risk_first", "risk_links")
SEEDS = st.integers(min_value=0, max_value=2**32 - 1)


def assert_same(found: Entries, due: Entries, told: object) -> None:
    """Assert that every column is the same."""
    for name in ALL:
        one, other = getattr(found, name), getattr(due, name)
        np.testing.assert_array_equal(one, other, err_msg=f"{told}: {name}")


def assert_same_difference(old: Entries, new: Entries, told: object) -> None:
    """Assert that the recorded edit gives the same difference as a comparison of copies."""
    copies = [
        Entries(**{name: getattr(entries, name).copy() for name in ALL}) for entries in (old, new)
    ]
    known, compared = (partners(*pair) for pair in ((old, new), copies))
    assert known.tolist() == compared.tolist(), told
    for found, due in zip(difference(old, new), difference(copies[0], copies[1]), strict=True):
        assert found.tolist() == due.tolist(), told


def mixed(rng: Random, one: Plan, other: Plan) -> Plan:
    """The second plan, with the paths and backups of the first for some flows."""
    taken = [rng.random() < 0.5 for _ in range(len(one.flows))]

    def both(mine: Paths, theirs: Paths) -> Paths:
        rows = [
            np.flatnonzero([taken[flow] for flow in mine.flow.tolist()]),
            np.flatnonzero([not taken[flow] for flow in theirs.flow.tolist()]),
        ]
        together = join_paths([mine.take(rows[0]), theirs.take(rows[1])])
        return together.take(np.argsort(together.flow, kind="stable"))

    paths, backups = both(one.paths, other.paths), both(one.backups, other.backups)
    return Plan(other.fabric, one.flows, paths, backups)


@given(SEEDS)
def test_entries_after_any_change(seed: int) -> None:
    """Derived entries are right when paths change, links fail or return, and flows lose paths.

    More flows may have come behind the earlier ones.
    """
    rng, shape = Random(seed), Random(seed)
    fabric = random_fabric(shape)
    draws = rng.randrange(2**32)
    old = random_plan(Random(draws), with_failures(rng, fabric))
    new = mixed(rng, old, random_plan(Random(draws), with_failures(rng, fabric)))
    first = _first(old, rng.randrange(len(old.flows) + 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "_WORTH", 0)
        for before in (old, first):
            assert_same(entries_after(new, (before, entries_of(before))), entries_of(new), seed)


def _first(plan: Plan, count: int) -> Plan:
    """The plan without all flows behind the first ``count``."""
    kept = kept_flows(plan.flows, plan.flows.take(np.arange(count)))
    none = Plan(plan.fabric, plan.flows.take(np.arange(0)), no_paths(), no_paths())
    return none if kept is None else plan_with_kept(plan, kept)


@given(SEEDS)
def test_flows_that_differ(seed: int) -> None:
    """``differing`` marks exactly the flows with other paths; all moved flows are among them."""
    rng, shape = Random(seed), Random(seed)
    fabric = random_fabric(shape)
    draws = rng.randrange(2**32)
    old = random_plan(Random(draws), with_failures(rng, fabric))
    new = mixed(rng, old, random_plan(Random(draws), with_failures(rng, fabric)))

    def told(paths: Paths, flow: int) -> list[tuple[int, int, list[int]]]:
        rows = np.flatnonzero(paths.flow == flow).tolist()
        return [
            (int(paths.first_qp[row]), int(paths.last_qp[row]), paths.of(row).tolist())
            for row in rows
        ]

    count = len(old.flows)
    due = [told(old.paths, flow) != told(new.paths, flow) for flow in range(count)]
    found = differing(old.paths, new.paths, count)
    assert found.tolist() == due, seed
    assert found[changed_flows(old, new)].all(), seed


@pytest.mark.parametrize("seed", range(3))
def test_entries_after_repairs(seed: int) -> None:
    """Entries follow each repair while links, also of NICs, fail and return."""
    fabric = three_tier(zones=3, leaves=4, spines=4, nics_per_leaf=4, cores=4, nics_per_host=2)
    plan = solve(fabric, permutations(fabric, seed, sets=2, qps=2))
    repairer, entries, rng = Repairer(plan), entries_of(plan), Random(seed)
    inner = np.flatnonzero(between_switches(fabric)).tolist()
    for _ in range(12):
        link = rng.choice(inner) if rng.random() < 0.8 else rng.randrange(fabric.link_count)
        changed = _toggled(plan.fabric, link)
        after = repairer.repair(changed, plan.flows)
        found = entries_after(after, (plan, entries))
        assert_same(found, entries_of(after), (seed, link))
        assert_same_difference(entries, found, (seed, link))
        plan, entries = after, found


@pytest.mark.parametrize("tables", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_plans_after_jobs_come_and_end(seed: int, tables: bool) -> None:  # noqa: FBT001
    """When jobs end, others come and change and links fail, all follows from the plan before.

    No other flow moves when a job ends, also if that one brought the names of phases. Each plan is
    sound, the next repair is ready at once, and paths, loads and entries are as if made anew from
    what is kept. What is tried on a copy changes nothing.
    """
    fabric = three_tier(
        zones=3,
        leaves=4,
        spines=4,
        nics_per_leaf=4,
        cores=4,
        nics_per_host=2,
        table_size=1000 if tables else NONE,
    )
    rng = Random(seed)
    hosts = [*fabric.structure.nics_of_host]
    rng.shuffle(hosts)
    ways = [Parallelism(tp=2), Parallelism(tp=2, pp=2), Parallelism(tp=1, pp=2, ep=2)]
    jobs = [
        Job(f"j{n}", tuple(hosts[4 * n : 4 * n + 4]), 2, rng.choice(ways), qps=rng.choice([1, 2]))
        for n in range(len(hosts) // 4)
    ]
    coming = deque(jobs)
    standing = [coming.popleft() for _ in range(3)]
    plan = solve(fabric, _flows_of(standing, fabric))
    repairer, entries = Repairer(plan), entries_of(plan)
    inner = np.flatnonzero(between_switches(fabric)).tolist()
    for step in range(12):
        ended = standing.pop(0 if step % 2 else rng.randrange(len(standing)))
        came = [coming.popleft() for _ in range(1 if len(standing) > 1 and step % 3 else 2)]
        standing += came if step % 4 else []
        coming += [ended, *([] if step % 4 else came)]
        if rng.random() < 0.5:
            fabric = _toggled(fabric, rng.choice(inner))
        if step % 4 and len(standing) - len(came) > 1:  # some flows are kept
            row = rng.randrange(len(standing))
            standing[row] = _changed(rng, standing[row], hosts)
        if step % 4 == 1:
            standing.insert(0, standing.pop())  # as a job that is resumed
        flows = _flows_of(standing, fabric)
        lost = (plan.fabric.link_state != fabric.link_state).any()
        tried = repairer.copy().repair(fabric, flows)
        after = repairer.repair(fabric, flows)
        np.testing.assert_array_equal(tried.paths.arcs, after.paths.arcs, err_msg=str((seed, step)))
        left = kept_of((plan, entries), fabric.structure, flows)
        assert left[0] is not plan, (seed, step)
        assert_same(left[1], entries_of(left[0]), (seed, step))
        anew = Repairer(left[0]).repair(fabric, flows)
        np.testing.assert_array_equal(anew.paths.arcs, after.paths.arcs, err_msg=str((seed, step)))
        assert repairer.is_ready_for(after), (seed, step)
        verify_plan(after)
        verify_plan(after, left)
        again = Repairer(after).repair(fabric, flows).certificate
        assert after.certificate.lower_bound == pytest.approx(again.lower_bound), (seed, step)
        np.testing.assert_array_equal(
            after.loads, arc_loads(len(after.loads), flows, after.paths), err_msg=str((seed, step))
        )
        moved = changed_flows(left[0], after).tolist()
        assert {*moved} <= {*changed_flows(plan, after).tolist()}, (seed, step)
        assert lost or step % 4 or not moved, (seed, step)
        plan, entries = after, entries_after(after, left)
        assert_same(entries, entries_of(after), (seed, step))


@settings(max_examples=examples(20))
@given(SEEDS)
def test_flows_go_over_to_other_jobs_and_phases(seed: int) -> None:
    """Plans stay sound while flows go over to other jobs and phases, and links fail and return.

    A name is known only while a flow has it.
    """
    rng = Random(seed)
    fabric = clos(leaves=3, spines=2, nics_per_leaf=3, nics_per_host=1)
    rows = [_demand(rng, *rng.sample(nic_ids(fabric), 2)) for _ in range(8)]
    repairer = Repairer(solve(fabric, flows_of(fabric, *rows)))
    inner = np.flatnonzero(between_switches(fabric)).tolist()
    for _ in range(6):
        rows = [_demand(rng, *row[:2]) if rng.random() < 0.3 else row for row in rows]
        fabric = _toggled(fabric, rng.choice(inner))
        verify_plan(repairer.repair(fabric, flows_of(fabric, *rows)))


def _demand(rng: Random, source: str, destination: str) -> Row:
    return source, destination, 100.0, 2, rng.choice("ab"), rng.choice(["", "", *"pqrs"])


def _changed(rng: Random, job: Job, hosts: list[str]) -> Job:
    """A job with other hosts, QPs, priority or phases."""
    match rng.randrange(5):
        case 0:
            other = rng.choice([host for host in hosts if host not in job.hosts])
            return replace(job, hosts=(*job.hosts[:-1], other))
        case 1:
            return replace(job, hosts=tuple(rng.sample(hosts, len(job.hosts) ^ 12)))
        case 2:
            return replace(job, qps=3 - job.qps)
        case 3:
            return replace(job, priority=job.priority + 1)
    return replace(job, parallelism=Parallelism(tp=2, pp=2))


def _flows_of(jobs: list[Job], fabric: Fabric) -> Flows:
    return concatenate([flows_of_job(job, fabric) for job in jobs])


def _toggled(fabric: Fabric, link: int) -> Fabric:
    up = fabric.link_state[link] == State.UP
    return fabric.with_links({link: State.DOWN if up else State.UP})


def test_entries_know_what_they_were_made_of_and_hold_none_of_it() -> None:
    """Entries know how they derive from the last ones, without keeping those in memory.

    A copy with another column has no such knowledge, unless only its stages differ and do not
    matter.
    """
    fabric = three_tier(zones=2, leaves=2, spines=2, nics_per_leaf=4, cores=2, nics_per_host=2)
    plan = solve(fabric, permutations(fabric, 1, sets=4, qps=2))
    repairer, made = Repairer(plan), [entries_of(plan)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs, "_WORTH", 0)
        for link in np.flatnonzero(between_switches(fabric)).tolist()[:5]:
            after = repairer.repair(fabric.with_links({link: State.DOWN}), plan.flows)
            made.append(entries_after(after, (plan, made[-1])))
            plan = after
    _each_tells(made)
    gone = [weakref.ref(entries.switch) for entries in made[:-1]]
    last = made[-1]
    del made
    gc.collect()
    assert len(last)
    assert [column() for column in gone] == [None] * 5


def _each_tells(made: list[Entries]) -> None:
    """Assert that each knows its edit from the one before, and that changed copies do not."""
    for old, new in pairwise(made):
        edit, turned = known_edit(old, new), replace(new, stage=new.stage + 1)
        assert edit is not None
        assert len(edit.gone) + len(edit.came) > 0
        assert known_edit(old, new, stages=True) is edit
        assert known_edit(replace(old, stage=old.stage + 1), turned) is edit
        assert known_edit(old, turned, stages=True) is None
        assert known_edit(old, replace(new, primary=new.primary.copy())) is None
        assert known_edit(replace(old, primary=old.primary.copy()), new) is None
