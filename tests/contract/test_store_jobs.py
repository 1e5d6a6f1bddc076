"""Jobs and demands in every store: names, hosts, etags and refusals."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from heddle_controller.model.files.fabric_file import fabric_document, parse_fabric
from heddle_controller.planner.planning import left_out
from heddle_controller.state.errors import (
    AlreadyExists,
    Conflict,
    FailedPrecondition,
    NotFound,
)
from heddle_controller.state.records import (
    DemandRecord,
    JobFacts,
    JobRecord,
    JobState,
    Request,
)
from heddle_controller.store.store import Store
from tests.contract.store_worlds import StoreWorld
from tests.support.store_samples import clos, demands, job, plain


@pytest.fixture
async def fabric(store: Store) -> Store:
    """A store with fabric f1 of hosts h0.0 to h1.1, revision 1."""
    await store.put_fabric("f1", clos())
    return store


async def test_submitted_is_got_back(fabric: Store) -> None:
    """A job is read back as submitted, ACCEPTED, and raises the version of the intent."""
    record = await fabric.submit_job("f1", job())
    assert record.job == job()
    assert record.facts.state == JobState.ACCEPTED
    assert record.facts.etag == record.etag
    assert await fabric.get_job("f1", "j1") == record
    intent = await fabric.intent("f1")
    assert (intent.version, intent.jobs) == (2, (record,))


async def test_names_are_unique(fabric: Store) -> None:
    """A second job with the same name is refused, and the first stays."""
    first = await fabric.submit_job("f1", job())
    with pytest.raises(AlreadyExists, match="fabrics/f1/jobs/j1"):
        await fabric.submit_job("f1", job(hosts=("h0.1", "h1.1")))
    assert await fabric.list_jobs("f1") == [first]


async def test_hosts_have_one_job(fabric: Store) -> None:
    """A job on hosts in use is refused as a whole, and told which job has which host."""
    await fabric.submit_job("f1", job())
    with pytest.raises(FailedPrecondition) as caught:
        await fabric.submit_job("f1", job("j2", ("h0.1", "h1.0", "h0.0")))
    assert [str(p) for p in caught.value.problems] == [
        "host 'h1.0': is in use by job 'j1'; delete it, or choose others",
        "host 'h0.0': is in use by job 'j1'; delete it, or choose others",
    ]
    assert (await fabric.versions("f1")).intent == 2
    await fabric.submit_job("f1", job("j3", ("h0.1",)))


async def test_one_of_many_at_once(fabric: Store) -> None:
    """Of many jobs that want the same host at the same time, one gets it."""
    asked = [fabric.submit_job("f1", job(f"j{n}", ("h0.0",))) for n in range(20)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert sum(isinstance(a, JobRecord) for a in answers) == 1
    assert sum(isinstance(a, FailedPrecondition) for a in answers) == 19
    assert len(await fabric.list_jobs("f1")) == 1


async def test_update_replaces_the_specification(fabric: Store) -> None:
    """An update gives a new etag, keeps the creation time, frees old hosts and takes new ones."""
    first = await fabric.submit_job("f1", job())
    second = await fabric.update_job("f1", job(hosts=("h0.1", "h1.0")), etag=first.etag)
    assert (await fabric.get_job("f1", "j1")) == second
    assert second.etag != first.etag
    assert second.create_time == first.create_time
    await fabric.submit_job("f1", job("j2", ("h0.0",)))
    with pytest.raises(FailedPrecondition):
        await fabric.submit_job("f1", job("j3", ("h0.1",)))


async def test_an_update_to_what_it_is_changes_nothing(fabric: Store) -> None:
    """An update to the same specification returns the job with its facts, also when repeated."""
    first = await fabric.submit_job("f1", job())
    epoch = await fabric.acquire_leadership("c1")
    facts = JobFacts(first.etag, JobState.PROGRAMMED, "", 4, 0, 3, 5.0)
    await fabric.record_jobs("f1", epoch=epoch, facts={"j1": facts})
    before = await fabric.versions("f1")
    for request in (Request(), Request("r1"), Request("r1")):
        same = await fabric.update_job("f1", job(), etag=first.etag, request=request)
        assert same == replace(first, facts=facts)
    assert (await fabric.versions("f1")).intent == before.intent
    assert [record.entry.action for record in (await fabric.audit()).records][-1] == "submit_job"
    with pytest.raises(Conflict):
        await fabric.update_job("f1", job(), etag="old")
    with pytest.raises(NotFound):  # it was there when its etag was read
        await fabric.update_job("f1", job("gone"), etag=first.etag, allow_missing=True)


async def test_refused_update_changes_nothing(fabric: Store) -> None:
    """An update is refused for hosts in use, an old etag or an unknown job, and changes nothing."""
    first = await fabric.submit_job("f1", job())
    await fabric.submit_job("f1", job("j2", ("h0.1",)))
    with pytest.raises(FailedPrecondition):
        await fabric.update_job("f1", job(hosts=("h0.1",)))
    with pytest.raises(Conflict):
        await fabric.update_job("f1", job(qps=2), etag="old")
    with pytest.raises(NotFound):
        await fabric.update_job("f1", job("j9"))
    assert await fabric.get_job("f1", "j1") == first
    with pytest.raises(FailedPrecondition):
        await fabric.submit_job("f1", job("j3", ("h0.0",)))


async def test_delete_frees_hosts_and_name(fabric: Store) -> None:
    """A deleted job is gone; its name and hosts can be used again, with another etag."""
    first = await fabric.submit_job("f1", job())
    with pytest.raises(Conflict):
        await fabric.delete_job("f1", "j1", etag="old")
    await fabric.delete_job("f1", "j1", etag=first.etag)
    with pytest.raises(NotFound, match=r"j1 does not exist; .*heddle job list"):
        await fabric.get_job("f1", "j1")
    with pytest.raises(NotFound):
        await fabric.delete_job("f1", "j1")
    assert (await fabric.intent("f1")).jobs == ()
    assert (await fabric.submit_job("f1", job())).etag != first.etag


async def test_list_by_name_and_page(fabric: Store) -> None:
    """Jobs are listed by name, page by page."""
    for name, host in (("b", "h0.0"), ("c", "h0.1"), ("a", "h1.0")):
        await fabric.submit_job("f1", job(name, (host,)))
    assert [r.job.name for r in await fabric.list_jobs("f1")] == ["a", "b", "c"]
    assert [r.job.name for r in await fabric.list_jobs("f1", after="a", limit=1)] == ["b"]
    assert await fabric.list_jobs("f1", after="c") == []


async def test_fabrics_do_not_mix(fabric: Store) -> None:
    """The same job names in two fabrics are different jobs."""
    await fabric.put_fabric("f2", clos())
    await fabric.submit_job("f1", job())
    await fabric.submit_job("f2", job())
    await fabric.delete_job("f1", "j1")
    assert [r.job.name for r in await fabric.list_jobs("f2")] == ["j1"]
    assert (await fabric.versions("f2")).intent == 2


async def test_demands_are_replaced_whole(fabric: Store) -> None:
    """A demand set is what was put last, and part of the intent until it is deleted."""
    first = await fabric.put_demands("f1", "d1", demands(("n0.0", "n1.0")))
    wanted = demands(("n0.1", "n1.0"), ("n1.0", "n0.1"))
    second = await fabric.put_demands("f1", "d1", wanted)
    assert first.etag != second.etag
    assert plain((await fabric.get_demands("f1", "d1")).demands) == plain(wanted)
    assert plain((await fabric.intent("f1")).demands) == plain((second,))
    await fabric.delete_demands("f1", "d1")
    for gone in (fabric.get_demands("f1", "d1"), fabric.delete_demands("f1", "d1")):
        with pytest.raises(
            NotFound, match=r"fabrics/f1/demands/d1 does not exist; .*heddle demand list"
        ):
            await gone
    assert (await fabric.intent("f1")).version == 4


async def test_survives_reopening(world: StoreWorld) -> None:
    """Jobs, hosts in use and demands are there for the next process."""
    store = await world.open()
    await store.put_fabric("f1", clos())
    await store.submit_job("f1", job())
    await store.put_demands("f1", "d1", demands(("n0.0", "n1.0")))
    intent = await store.intent("f1")
    await store.close()
    again = await world.open()
    assert plain(await again.intent("f1")) == plain(intent)
    with pytest.raises(FailedPrecondition):
        await again.submit_job("f1", job("j2"))
    await again.close()


async def test_one_of_many_sets_with_an_id_is_stored(fabric: Store) -> None:
    """Of sets with one flow id put at once, one is stored; the others are told whose id it is."""
    asked = [fabric.put_demands("f1", f"d{n}", demands(("n0.0", "n1.0"))) for n in range(20)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    stored = (await fabric.intent("f1")).demands
    assert sum(isinstance(answer, DemandRecord) for answer in answers) == len(stored) == 1
    refused = [answer for answer in answers if not isinstance(answer, DemandRecord)]
    assert {str(answer).partition(": ")[2] for answer in refused} == {
        f"flow 'f0': demands {stored[0].name!r} have one of this id; rename it"
    }
    await fabric.delete_demands("f1", stored[0].name)
    await fabric.put_demands("f1", "later", demands(("n0.0", "n1.0")))


async def test_sets_with_ids_of_their_own_are_stored_at_once(fabric: Store) -> None:
    """Sets with ids of their own are all stored, even if they come at once."""
    asked = [
        fabric.put_demands("f1", f"d{n}", demands(("n0.0", "n1.0"), ids=f"d{n}-"))
        for n in range(20)
    ]
    await asyncio.gather(*asked)
    assert len((await fabric.intent("f1")).demands) == 20


@pytest.mark.parametrize("jobs_first", [True, False])
async def test_ids_of_a_jobs_flows_are_the_jobs(fabric: Store, *, jobs_first: bool) -> None:
    """A flow id goes to the job or set that comes first; the other is refused, naming the job."""
    wanted = demands(("n0.0", "n1.0"), ids="j1/dp/n0.0->n1.")
    put = fabric.put_demands("f1", "d1", wanted)
    submit = fabric.submit_job("f1", job())
    first, second = (submit, put) if jobs_first else (put, submit)
    await first
    with pytest.raises(FailedPrecondition, match="job 'j1'"):
        await second
    for n in range(5):
        many = [
            fabric.put_demands("f1", f"e{n}", demands(("n0.0", "n1.0"), ids=f"k{n}/dp/->")),
            fabric.submit_job("f1", job(f"k{n}", ("h0.1",), gpus=((n,),))),
        ]
        answers = await asyncio.gather(*(many if n % 2 else many[::-1]), return_exceptions=True)
        assert sum(isinstance(answer, FailedPrecondition) for answer in answers) == 1
    intent = await fabric.intent("f1")
    assert not left_out(intent)
    await fabric.put_demands("f1", "free", demands(("n0.0", "n1.0"), ids="nobody/dp/->"))


async def test_a_set_put_again_is_answered_as_it_stands(fabric: Store) -> None:
    """The same content writes nothing; a set may keep its own id, or give it up to another set."""
    wanted = demands(("n0.0", "n1.0"))
    first = await fabric.put_demands("f1", "d1", wanted)
    before = await fabric.versions("f1")
    same = await fabric.put_demands("f1", "d1", wanted)
    assert (same.etag, same.update_time) == (first.etag, first.update_time)
    assert await fabric.versions("f1") == before
    more = demands(("n0.0", "n1.0"), ("n1.0", "n0.0"))
    await fabric.put_demands("f1", "d1", more)
    await fabric.put_demands("f1", "d1", demands(("n0.0", "n1.0"), ids="g"))
    await fabric.put_demands("f1", "d2", wanted)


async def test_hosts_of_any_name(world: StoreWorld) -> None:
    """Hosts of any name are told apart, and are still known to the next process."""
    hosts = ("a\0b", "a\0c", "a", "a\\0b", 'ä"\n', "x/y", "\u2028")
    store = await world.open()
    document = fabric_document(clos(hosts=4))
    nics = [node for node in document["nodes"] if node["kind"] == "nic"]
    for nic, host in zip(nics, hosts, strict=False):
        nic["host"] = host
    await store.put_fabric("f1", parse_fabric(document, "odd"))
    await store.submit_job("f1", job("j1", hosts[:1]))
    await store.submit_job("f1", job("j2", hosts[1:]))
    await store.close()
    store = await world.open()
    with pytest.raises(FailedPrecondition) as refused:
        await store.submit_job("f1", job("j3", hosts))
    assert len(refused.value.problems) == len(hosts)
    await store.delete_job("f1", "j1")
    await store.submit_job("f1", job("j3", hosts[:1]))
    assert [record.job.hosts for record in await store.list_jobs("f1")] == [hosts[1:], hosts[:1]]
    await store.close()
