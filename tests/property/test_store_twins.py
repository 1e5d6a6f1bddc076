"""Both stores give the same answers to any requests in any order.

Time stands still. Etags differ by nature and are compared by the order in which they were seen.
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import State
from heddle_controller.model.plan import Certificate
from heddle_controller.state.errors import PortError
from heddle_controller.state.records import (
    JobFacts,
    JobState,
    LinkName,
    PlanFacts,
    Programmed,
    Request,
)
from heddle_controller.store.embedded import open_embedded
from heddle_controller.store.store import Store
from tests.support.redis_server import NEVER, RedisServer, opened
from tests.support.store_samples import clos, demands, job, plain, plan_of, program_of

MEMORY = Path("/dev/shm")
"""A folder in memory, used if there is one: durability is not tested here."""

Step = Callable[["Twin"], Awaitable[Any]]

names, hosts = st.sampled_from(["a", "b", "c"]), st.sampled_from(["h0.0", "h0.1", "h1.0", "h1.1"])
states, switches = st.sampled_from(list(State)), st.sampled_from(["l0", "s0", "n0.0", "x"])
links = st.builds(LinkName, st.sampled_from(["l0", "s1"]), st.sampled_from(["s0", "l1", "l0"]))
requests = st.builds(Request, st.sampled_from(["", "", "", "r1", "r2"]))
ids = st.sampled_from(["f", "g", "h", "a/dp/x->", "b/pp/x->"])
gpus = st.sampled_from([[], [], [(0,), (1,)], [(1,), (1, 2)]])
pairs = st.sampled_from([[("n0.0", "n1.0")], [("n0.0", "n1.0"), ("n1.0", "n0.1")]])


class Twin:
    """One store, and what its client remembers."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.epoch = 0
        self.etags: dict[str, int] = {}

    def etag(self, age: int) -> str:
        """An etag that was seen, an empty one, or one that was never given."""
        seen = ["", *self.etags, "never"]
        return seen[age % len(seen)]

    def etag_number(self, etag: str) -> int:
        """The number of an etag, in the order in which etags were seen."""
        return self.etags.setdefault(etag, len(self.etags))

    def told(self, value: Any) -> Any:
        """A value with its etags replaced by numbers."""
        if isinstance(value, dict):
            return {
                key: self.etag_number(item) if key == "etag" else self.told(item)
                for key, item in value.items()
            }
        return [self.told(item) for item in value] if isinstance(value, list) else value


def step(make: Callable[..., Step], *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Step]:
    """Build a strategy for calls of a store with drawn arguments."""
    return st.builds(make, *arguments)


async def lead(twin: Twin) -> None:
    """Give up leadership, and take it again."""
    await twin.store.release_leadership(twin.epoch)
    twin.epoch = await twin.store.acquire_leadership("c")


async def commit(twin: Twin, ahead: int) -> Any:
    """Commit a plan on the current fabric, expecting the newest generation plus ``ahead``."""
    generation = (await twin.store.versions("f")).generation + ahead
    plan = plan_of((await twin.store.intent("f")).fabric)
    return await twin.store.commit(
        "f",
        epoch=twin.epoch,
        expected_generation=generation,
        plan=plan,
        program=program_of(plan, twin.epoch, generation + 1),
        facts=PlanFacts(3, 0.5),
    )


async def note(twin: Twin, name: str, age: int) -> None:
    """Record how far a job has come, under an etag of some age."""
    facts = JobFacts(twin.etag(age), JobState.PLANNED, "", 4, 0, 1, 5.0)
    await twin.store.record_jobs("f", epoch=twin.epoch, facts={name: facts})


async def everything(twin: Twin) -> Any:
    """Everything that can be read from a store."""
    store = twin.store
    trail = (await store.audit()).records
    entries = [
        (r.number, r.entry.action, r.entry.name, r.entry.before, r.entry.after) for r in trail
    ]
    return [
        plain(await store.list_fabrics()),
        plain(await store.get_fabric("f")),
        plain(await store.intent("f")),
        plain(await store.versions("f")),
        plain(await store.committed("f")),
        plain(entries),
    ]


STEPS = st.one_of(
    step(
        lambda n, h, g, q: lambda t: t.store.submit_job(
            "f", job(n, tuple(h), gpus=tuple(g[: len(h)])), request=q
        ),
        names, st.lists(hosts, max_size=2, unique=True), gpus, requests,
    ),
    step(
        lambda n, h, a, m, q: lambda t: t.store.update_job(
            "f", job(n, tuple(h), qps=2), etag=t.etag(a), allow_missing=m, request=q
        ),
        names, st.lists(hosts, max_size=2, unique=True), st.integers(0, 9), st.booleans(), requests,
    ),
    step(
        lambda n, h, g, q: lambda t: t.store.reserve(
            "f", n, h, 9, gpus=g[: len(h)], request=q
        ),
        names, st.lists(hosts, min_size=1, max_size=2, unique=True), gpus, requests,
    ),
    step(lambda n, q: lambda t: t.store.release("f", n, request=q), names, requests),
    step(
        lambda g, q: lambda t: t.store.roll_back("f", g, 1000.0, request=q),
        st.integers(0, 3),
        requests,
    ),
    step(lambda q: lambda t: t.store.end_rollback("f", request=q), requests),
    step(
        lambda n, a, q: lambda t: t.store.delete_job("f", n, etag=t.etag(a), request=q),
        names, st.integers(0, 9), requests,
    ),
    step(
        lambda n, i, p, q: lambda t: t.store.put_demands(
            "f", n, demands(*p, ids=i), request=q
        ),
        names, ids, pairs, requests,
    ),
    step(lambda n, q: lambda t: t.store.delete_demands("f", n, request=q), names, requests),
    step(
        lambda link, s, q: lambda t: t.store.set_link_state("f", link, s, request=q),
        links, states, requests,
    ),
    step(
        lambda n, s, q: lambda t: t.store.set_switch_state("f", n, s, request=q),
        switches, states, requests,
    ),
    step(
        lambda w, q: lambda t: t.store.set_overlay("f", withdrawn=w, request=q),
        st.booleans(), requests,
    ),
    step(
        lambda spines, a, q: lambda t: t.store.put_fabric(
            "f", clos(spines=spines), etag=t.etag(a), request=q
        ),
        st.integers(2, 3), st.integers(0, 9), requests,
    ),
    step(lambda ahead: lambda t: commit(t, ahead), st.sampled_from([0, 0, 0, 1, -1])),
    step(lambda n, a: lambda t: note(t, n, a), names, st.integers(0, 9)),
    step(
        lambda g, s: lambda t: t.store.record_programmed(
            "f", epoch=t.epoch, programmed=Programmed(g, s, 9.0)
        ),
        st.integers(0, 4), st.dictionaries(switches, st.integers(0, 5), max_size=2),
    ),
    step(
        lambda v: lambda t: t.store.record_kept("f", epoch=t.epoch, version=v),
        st.integers(1, 9),
    ),
    step(
        lambda g, h: lambda t: t.store.certify(
            "f", epoch=t.epoch, generation=g, certificate=Certificate(1.0, 1.0, "lp", ()),
            in_haste=h,
        ),
        st.integers(1, 3), st.booleans(),
    ),
    st.just(lead),
    st.just(everything),
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis server for all examples."""
    with RedisServer(tmp_path_factory.mktemp("redis"), *NEVER) as running:
        yield running


@settings(max_examples=12)
@given(st.lists(STEPS, min_size=5, max_size=40))
def test_both_stores_answer_alike(server: RedisServer, steps: list[Step]) -> None:
    """Answers and refusals are the same at every step, and so are the contents at the end."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        asyncio.run(_compare(Path(folder), server, steps))


async def _compare(folder: Path, server: RedisServer, steps: list[Step]) -> None:
    stores: list[Store] = [
        await open_embedded(folder / "store.db", lambda: 7.0),
        await opened(f"{server.url}?name={secrets.token_hex(4)}", now=lambda: 7.0),
    ]
    twins = [Twin(store) for store in stores]
    try:
        for one in twins:
            await one.store.put_fabric("f", clos())
        for ask in (lead, *steps, everything):
            first, second = [await _answer(ask, twin) for twin in twins]
            assert first == second
    finally:
        for store in stores:
            with suppress(PortError, InputError):
                await store.close()


async def _answer(ask: Step, twin: Twin) -> Any:
    try:
        return twin.told(plain(await ask(twin)))
    except (PortError, InputError) as error:
        return f"{type(error).__name__}: {error}"
