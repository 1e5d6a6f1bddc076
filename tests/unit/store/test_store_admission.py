from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from heddle_controller.model.errors import InputError
from heddle_controller.model.job import MAX_BYTES, Collective, Group, Job, Operation, Parallelism
from heddle_controller.state.admission import admit_job
from heddle_controller.state.errors import FailedPrecondition, Unavailable
from heddle_controller.state.records import Request
from heddle_controller.state.view import Ask, Change, Outcome
from heddle_controller.store.embedded import open_embedded
from heddle_controller.store.store import Store
from tests.support.store_samples import clos, demands, job, plain


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """Yield a store with fabric f1: two leaves of two hosts."""
    opened = await open_embedded(tmp_path / "store.db")
    await opened.put_fabric("f1", clos())
    yield opened
    await opened.close()


BAD_JOBS: dict[str, tuple[Job, str]] = {
    "name": (job(""), "job '': name: use 1 to 63 letters, digits, '-', '_' or '.'"),
    "slash": (job("a/b"), "name: use 1 to 63"),
    "no hosts": (job(hosts=()), "hosts: none are given"),
    "unknown host": (job(hosts=("h0.0", "h7")), "hosts[1]: 'h7' is not in the fabric; name one of"),
    "host twice": (job(hosts=("h0.0", "h0.0")), "hosts[1]: 'h0.0' is named twice"),
    "gpus": (replace(job(), gpus_per_host=0), "gpus_per_host: is 0; give 1 or more"),
    "qps": (job(qps=0), "qps: is 0; give 1 or more"),
    "priority": (job(priority=float("nan")), "priority: is nan; give a number above 0"),
    "negative": (job(parallelism=Parallelism(tp=-1)), "parallelism.tp: is -1"),
    "bytes": (
        job(collectives=(Collective(Operation.ALL_REDUCE, Group.DP, MAX_BYTES),)),
        f"collectives[0].bytes: is {MAX_BYTES}; give 1 to {MAX_BYTES - 1}",
    ),
    "product": (job(parallelism=Parallelism(tp=1, dp=3)), "job 'j1'"),
}


@pytest.mark.parametrize("kind", BAD_JOBS)
async def test_bad_jobs(store: Store, kind: str) -> None:
    """Submitting and updating are refused with what is wrong, and nothing is stored."""
    bad, says = BAD_JOBS[kind]
    for ask in (store.submit_job, store.update_job):
        with pytest.raises(InputError) as caught:
            await ask("f1", bad)
        assert says in str(caught.value)
    assert (await store.versions("f1")).intent == 1


def test_every_fault_is_told() -> None:
    """One refusal names every fault."""
    bad = replace(job(hosts=("x", "y")), gpus_per_host=0, qps=-1)
    with pytest.raises(InputError) as caught:
        admit_job(clos(), bad)
    records = [problem.record for problem in caught.value.problems]
    assert records == ["gpus_per_host", "qps", "hosts[0]", "hosts[1]"]


async def test_good_jobs(store: Store) -> None:
    """A job that fits is stored and updated, each time checked against the current fabric."""
    await store.submit_job("f1", job())
    await store.put_fabric("f1", clos(leaves=3))
    with pytest.raises(InputError):
        await store.update_job("f1", job(hosts=("h0.0", "h5.0")))
    await store.update_job("f1", job(hosts=("h0.0", "h2.0")))
    assert (await store.get_job("f1", "j1")).job.hosts == ("h0.0", "h2.0")


async def test_fabric_that_jobs_need(store: Store) -> None:
    """A fabric without the NICs of a job or demand set is refused with their names."""
    await store.submit_job("f1", job(hosts=("h0.0", "h1.0")))
    await store.put_demands("f1", "d1", demands(("n0.1", "n1.1")))
    with pytest.raises(FailedPrecondition) as caught:
        await store.put_fabric("f1", clos(leaves=1))
    records = [problem.record for problem in caught.value.problems]
    assert records == ["job 'j1'", "demands 'd1'"]
    assert (await store.get_fabric("f1")).fabric.node_count == clos().node_count
    await store.put_fabric("f1", clos(leaves=3))


async def test_bad_demands(store: Store) -> None:
    """A set with a NIC that the fabric lacks is refused as a whole."""
    with pytest.raises(InputError, match="flow 'f1': source 'n9' is not in the fabric"):
        await store.put_demands("f1", "d1", demands(("n0.0", "n1.0"), ("n9", "n1.0")))
    with pytest.raises(InputError, match="demand set 'a b'"):
        await store.put_demands("f1", "a b", demands(("n0.0", "n1.0")))
    assert (await store.intent("f1")).demands == ()


async def test_flow_ids_that_another_set_has(store: Store) -> None:
    """The refusal names the flow and the set that has it, as the flow would not be planned.

    The set itself may be replaced, and other ids are accepted.
    """
    first, second = demands(("n0.0", "n1.0")), demands(("n0.1", "n1.1"))
    await store.put_demands("f1", "d1", first)
    for name in ("d0", "d2"):
        with pytest.raises(FailedPrecondition) as caught:
            await store.put_demands("f1", name, second)
        assert "flow 'f0': demands 'd1' have one of this id; rename it" in str(caught.value)
    await store.put_demands("f1", "d1", second)
    await store.put_demands("f1", "d2", replace(first, ids=("other",)))
    assert [one.name for one in (await store.intent("f1")).demands] == ["d1", "d2"]


async def test_a_name_that_no_fabric_can_have(store: Store) -> None:
    """A fabric's name with a slash is refused."""
    with pytest.raises(InputError, match="fabric 'no/name'"):
        await store.put_fabric("no/name", clos())


async def test_a_replay_that_would_be_refused_today(store: Store) -> None:
    """A repeated request gets its old answer although its hosts are gone. A new one fails."""
    wanted = job(hosts=("h1.0",), parallelism=Parallelism(dp=1), collectives=())
    first = await store.submit_job("f1", wanted, request=Request("r1"))
    await store.delete_job("f1", "j1")
    await store.put_fabric("f1", clos(leaves=1))
    assert await store.submit_job("f1", wanted, request=Request("r1")) == first
    with pytest.raises(InputError, match=r"'h1\.0' is not in the fabric; "):
        await store.submit_job("f1", wanted, request=Request("r2"))
    assert await store.list_jobs("f1") == []


def hurried(store: Store, times: int) -> None:
    """From now on, replace the fabric right before a write, ``times`` times."""
    apply, left, spines = store.applier.apply, times, count(4)

    async def after_another(change: Change, ask: Ask) -> Outcome:
        nonlocal left
        if left:
            left, again = 0, left - 1
            await store.put_fabric("f1", clos(spines=next(spines)))
            left = again
        return await apply(change, ask)

    store.applier.apply = after_another  # type: ignore[method-assign]


async def test_checks_are_made_again(store: Store) -> None:
    """If the fabric changes between check and write, the new fabric is checked."""
    hurried(store, 3)
    await store.submit_job("f1", job())
    hurried(store, 3)
    await store.put_demands("f1", "d", demands(("n0.0", "n1.0")))
    hurried(store, 3)
    put = await store.put_fabric("f1", clos(hosts=3))
    assert plain((await store.get_fabric("f1")).fabric) == plain(put.fabric)


async def test_not_for_ever(store: Store) -> None:
    """If the fabric changes again and again, the caller is told to retry."""
    hurried(store, 99)
    with pytest.raises(Unavailable, match="changes all the time"):
        await store.submit_job("f1", job())
