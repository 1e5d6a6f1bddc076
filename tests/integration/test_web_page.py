"""The web page as people use it: a real controller, agents of every switch, and a browser."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
import pytest
import pytest_asyncio

from heddle.v1 import common_pb2, demand_pb2, fabric_pb2, plan_pb2
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import parse_fabric
from heddle_controller.model.job import Collective, Group, Job, Operation, Parallelism
from heddle_emulator.client import Client
from heddle_emulator.drill.live import LiveFabric, cable_name
from heddle_emulator.drill.scenario import Step, StepKind
from heddle_emulator.drill.steps import StepRunner
from heddle_emulator.fleet import Controller, Fleet
from heddle_emulator.report.folder import write
from heddle_emulator.topology import clos
from tests.integration.browsing import browser
from tests.support.chromium import Page, browsing
from tests.support.depth import examples
from tests.support.ports import free_port
from tests.support.redis_server import ALWAYS, RedisServer
from tests.support.report_evidences import held
from tests.support.solve_flows import flows_of
from tests.support.waiting import PATIENCE, wait_until

POD = clos(leaves=4, spines=2, nics_per_leaf=4, nics_per_host=4, name="pod")
JOB = Job(
    "slow", ("l0-h0", "l1-h0", "l2-h0", "l3-h0"), 4, Parallelism(dp=16),
    (Collective(Operation.ALL_TO_ALL, Group.WORLD, 1 << 30),),
)  # fmt: skip
VIEWS = {
    "": "#verdict", "/map": "[data-painted]", "/jobs": "table", "/job?id=slow": "table",
    "/flows": "table", "/plans": "main div + div table", "/drills": "h1 + div p",
    "/events": "table", "/what-if": "form",
    "/health": "#findings", "/switch?id=l0": "table", "/link?source=l0&target=s0&key=0": "table",
    "/nothing": "main a",
}  # fmt: skip
"""Views of the page, each with a selector of what is there once it is drawn."""
WINDOWS = [(1280, False), (390, True), (1280, True), (390, False)]
"""Widths of windows in pixels, and whether colours are dark."""
PLAYED = """
window.EventSource = class extends EventTarget {
  static OPEN = 1;
  static CLOSED = 2;
  readyState = 1;
  constructor() { super(); window.played = this; }
  close() {}
};
fetch("/api/fabrics/f1/overview").then((answer) => answer.json()).then((told) => {
  window.tell = (first, last) => {
    for (let number = first; number < last; number++) {
      const events = [...Array(50).keys()].map((one) => ({
        number: number + one - 49, time: 1e9 + number, kind: one % 2 ? "plan" : "link",
        text: `change ${number + one - 49}`, because: one % 2 ? [number + one - 50] : []}));
      const plan = {...told.plan, generation: number};
      const data = JSON.stringify({...told, plan, events});
      window.played.dispatchEvent(new MessageEvent("overview", {data}));
    }
  };
});
"""
"""A script for a stream that sends what the test says, as fast as the page takes it."""
STATES = "[...document.querySelectorAll('main a[href$=\"/jobs\"]')]"
"""The links of an overview to the jobs in each state. All lead to the same view."""
CELLS = """[...document.querySelectorAll("tbody tr")].map(
  (row) => [...row.cells].map((cell) => cell.innerText))"""
"""The texts of all rows of all tables."""
FEWER_ROWS = (
    "document.querySelectorAll('tbody tr:nth-child(n + 21)').forEach((row) => row.remove())"
)
"""Leaves twenty rows of each table: axe takes most of its time for hundreds that are alike."""
SHORT_ANSWER = """{
  const real = window.fetch;
  window.fetch = async (...given) => {
    const answer = await real(...given), told = await answer.json();
    if (told.moved_flows) { window.moved = told.moved_flows; told.moved_flows = []; }
    return new Response(JSON.stringify(told), {status: answer.status});
  };
} 0"""
"""Leaves out the names of flows that would move, of which answers have a limited number."""
SPOKEN = """{
  const live = document.querySelector("#live"), status = document.querySelector("[role=status]");
  window.shown = []; window.spoken = [];
  const each = {childList: true, subtree: true, characterData: true};
  new MutationObserver(() => window.shown.push(live.textContent)).observe(live, each);
  new MutationObserver(() => window.spoken.push(status.textContent)).observe(status, each);
} 0"""
"""Records what the page shows of its state, and what a screen reader says of it."""
HANGING = """{
  const Real = window.EventSource;
  window.streams = 0;
  window.EventSource = class extends Real {
    constructor(...given) { super(...given); window.streams++; }
  };
  window.fetch = (path, {signal}) => new Promise((_, fail) => signal.addEventListener(
    "abort", () => { window.ended = signal.reason.message; fail(signal.reason); }));
  const now = Date.now;
  window.slept = 0;
  Date.now = () => now() + window.slept;
} 0"""
"""Lets no request end, as on a dead connection, counts the streams that are opened, and sets the
clock forward by ``slept`` milliseconds."""
MARKUP = '<img src=x onerror="document.title=1,1">'
pytestmark = pytest.mark.asyncio(loop_scope="module")  # they share a browser


@dataclass
class World:
    """A controller, a browser's page, and a fabric with the agents of its switches."""

    controller: Controller
    page: Page
    fabric: str
    fleet: Fleet

    async def open(self, path: str) -> None:
        """Open a view of the fabric."""
        await self.page.open(f"{self.controller.page}{self.fabric}{path}")

    def client(self) -> Client:
        """Return a client of the fabric; use it as ``async with``."""
        return Client(self.controller.api, self.fabric)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shown(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Page]:
    """One browser for all tests of this file."""
    browser()
    async with browsing(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest_asyncio.fixture(loop_scope="module")
async def page(shown: Page) -> Page:
    """A page that nobody has used."""
    await shown.begin()
    return shown


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def controller(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Controller]:
    """One controller for all tests that leave it running. They have fabrics of their own."""
    async with Controller(tmp_path_factory.mktemp("shared"), "--web-port=0") as made:
        yield made


@asynccontextmanager
async def world(
    controller: Controller, page: Page, name: str, fabric: Fabric, *jobs: Job
) -> AsyncIterator[World]:
    """A fabric with its agents, and the jobs programmed."""
    name = f"fabrics/{name}"
    async with Client(controller.api, name) as client:
        await client.put_fabric(fabric)
        async with Fleet(fabric, [controller.api], name=name, notices=True) as fleet:
            await fleet.connected(PATIENCE)
            for job in jobs:
                await client.submit(job)
            await client.programmed_jobs([job.name for job in jobs], PATIENCE)
            yield World(controller, page, name, fleet)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(controller: Controller, shown: Page) -> AsyncIterator[World]:
    """One world for all tests that change nothing in it."""
    async with world(controller, shown, "f1", POD, JOB) as made:
        yield made


@pytest.fixture
def still(shared: World, page: Page) -> World:
    """The shared world, with a page that nobody has used."""
    assert shared.page is page
    return shared


async def test_from_a_slow_job_to_the_guilty_link(still: World) -> None:
    """Clicks lead from the jobs to the link that slows one, to its flows, and to their reasons.

    The link of a NIC leads to its switch.

    Four NICs of a leaf share two links to the spines, so no flow can have all that it wants.
    """
    page = still.page
    await still.open("")
    await page.until("document.querySelector('#verdict')")
    await page.until("document.querySelector('#live').textContent === 'Live'")
    await page.click("nav a[href='/fabrics/f1/jobs']")
    await page.click("main a[href='/fabrics/f1/job?id=slow']")
    await page.until("document.querySelector('#guilty')")
    told = await page.does("document.querySelector('#guilty').textContent")
    assert told.startswith("Slow for the link l"), told
    doctor = await page.does("document.querySelector('#findings').textContent")
    assert "link" in doctor, doctor
    await page.click("#guilty a")
    await page.until("location.pathname === '/fabrics/f1/link'")
    await page.until("document.querySelectorAll('tbody tr').length")
    ends = await page.does(
        "[...new URLSearchParams(location.search)].slice(0, 2).map((one) => one[1])"
    )
    assert {end[0] for end in ends} == {"l", "s"}
    await page.click("tbody a[href^='/fabrics/f1/flow?']")
    await page.until("document.querySelector('#reasons li')")
    hops = await page.does("[...document.querySelectorAll('tbody tr')].map((row) => row.innerText)")
    assert any(all(end in hop for end in ends) for hop in hops), (ends, hops)
    await still.open("/link?source=l0&target=l0-h0-n0&key=0")
    await page.until("document.querySelector('main a[href^=\"/fabrics/f1/switch?\"]')")
    leads = "[...document.querySelectorAll('main a[href*=\"/switch?\"]')].map((one) => one.text)"
    assert await page.does(leads) == ["l0"]
    assert page.console == []


async def test_the_heat_map_is_worked_by_keys_and_said_in_words(still: World) -> None:
    """Arrow keys move over cells, each is told in words, and Enter opens its link.

    The cell at the cursor is in the window, wherever that was scrolled to. A table has the cells as
    well.
    """
    page = still.page
    await page.window(390, 400, dark=True)
    await still.open("/map")
    await page.until("document.querySelector('[data-painted]')")
    assert await page.does("document.body.scrollWidth <= innerWidth")
    assert await page.does("document.querySelectorAll('tbody tr').length === 8")
    await page.does("document.querySelector('figure canvas').focus()")
    await page.key("ArrowDown")
    await page.key("ArrowRight")
    told = await page.does("document.querySelector('#cell').textContent")
    assert told.startswith("l1 × s1: "), told
    assert "200.0 % full" in told
    await page.does("scrollTo(0, document.body.scrollHeight)")
    top = "document.querySelector('figure canvas').getBoundingClientRect().top"
    assert await page.does(top) < 0
    await page.key("ArrowUp")
    await page.key("ArrowDown")
    assert 0 <= 10 + await page.does(top) < 380
    painted = await page.does(
        "[...document.querySelector('figure canvas')"
        ".getContext('2d').getImageData(2, 2, 1, 1).data]"
    )
    assert painted == [0xFF, 0x6B, 0x63, 255]  # above 100 %, in the dark
    await page.key("Enter")
    await page.until("location.search === '?source=l1&target=s1&key=0'")
    assert page.console == []


async def test_what_is_measured_stands_beside_what_was_planned(still: World) -> None:
    """Once rates are reported, the map shows how full links are as measured and as planned.

    Before that, it says that nothing was measured, and shows no link as filled.
    """
    page = still.page
    await still.open("/map")
    await page.until("document.querySelector('[data-painted]')")
    choose = "document.querySelector('#what').value = 'measured';"
    await page.does(f"{choose} document.querySelector('#what').dispatchEvent(new Event('change'))")
    await page.until("document.querySelector('[data-measured=\"0\"]')")
    note = await page.does("document.querySelector('main .note').textContent")
    assert "No flow was measured yet" in note
    assert await page.does("document.querySelectorAll('tbody tr').length") == 0
    async with still.client() as client:
        _, routes = await client.list_routes()
        rates = {route.flow: route.gbps / 4 for route in routes}
        batch = demand_pb2.RateBatch(interval_seconds=1.0, flows=rates, rates_gbps=rates.values())
        batch.time.GetCurrentTime()
        message = demand_pb2.ReportRatesRequest(fabric="fabrics/f1", batch=batch)
        await client.demands.ReportRates(iter([message]))
    await page.until(f"document.querySelector('[data-measured=\"{len(rates)}\"]')")
    rows = await page.does("[...document.querySelectorAll('tbody tr')].map((row) => row.innerText)")
    assert len(rows) == 8
    assert all("50.0 %\t50.0 %\t200.0 %\t200.0 %" in row for row in rows), rows
    await page.click("tbody a")
    await page.until("document.querySelector('main').innerText.includes('measured 50.0 %')")
    assert page.console == []


OFFER = """{
  document.querySelector("#kind").value = %s;
  document.querySelector("#named").value = %s;
  document.querySelector("#kind").dispatchEvent(new Event("change"));
}"""


FAIL_ONCE = """{
  const real = window.fetch;
  window.failing = window.fetch = (path, given) => {
    if (!path.includes("/structure")) return real(path, given);
    window.fetch = real;
    return Promise.reject(new TypeError("lost"));
  };
}"""


TWO_PAGES = """{
  const real = window.fetch;
  window.fetch = async (path, given) => {
    const answer = await real(path.replace("page=2", ""), given);
    if (!path.includes("/jobs?")) return answer;
    const told = await answer.json();
    if (!path.includes("page=2")) Object.assign(told, {jobs: [], next_page_token: "2"});
    return new Response(JSON.stringify(told), {status: answer.status});
  };
} 0"""
"""Moves all jobs of an answer to a second page."""


async def test_what_if_is_asked_by_a_form_and_changes_nothing(still: World) -> None:
    """The form's answer has the worst link as it would be; the plan and the links stay.

    It counts all flows that would move, also those that are not named. A wrong name gives an alert.
    The form offers the names that contain what is typed, as they are when the field gets the focus,
    from all pages of a list.
    """
    page = still.page
    async with still.client() as client:
        before = await client.list_routes()
    await still.open("/what-if")
    await page.until("document.querySelector('#named')")
    offered = "[...document.querySelectorAll('#names option')].map((one) => one.value).join(' ')"
    await page.does(FAIL_ONCE)
    await page.does(OFFER % ('"switch"', '"s"'))
    await page.until(f"window.fetch !== window.failing && {offered} === ''")
    await page.does("document.querySelector('#named').focus()")
    await page.until(f"{offered} === 's0 s1'")
    for kind, typed, names in (("switch", "s", "s0 s1"), ("link", "l1,", "l1,s0,0 l1,s1,0")):
        await page.does(OFFER % (json.dumps(kind), json.dumps(typed)))
        await page.until(f"{offered} === {json.dumps(names)}")
    await page.does(TWO_PAGES)
    await page.does(OFFER % ('"job"', '"s"'))
    await page.until(f"{offered} === 'slow'")
    await page.does(OFFER % ('"link"', '"l0,s0"'))
    await page.click("button")
    await page.until("document.querySelector('#answer tbody')")
    rows = await page.does(
        "[...document.querySelectorAll('#answer tr')].map((row) => row.innerText)"
    )
    assert any("200.0 %\t400.0 %" in row for row in rows), rows
    await page.does(SHORT_ANSWER)
    await page.click("button")
    await page.until("window.moved?.length > 1")
    count = await page.does("window.moved.length")
    told = f"document.querySelector('#answer').innerText.includes('{count} flows would move.')"
    await page.until(told)
    await page.does("document.querySelector('#named').value = 'l0,nobody'")
    await page.click("button")
    await page.until("document.querySelector('#answer [role=alert]')")
    assert await page.does("document.querySelector('#answer').innerText.includes('nobody')")
    not_up = fabric_pb2.ListLinksRequest(parent="fabrics/f1", not_up_only=True)
    async with still.client() as client:
        assert await client.list_routes() == before
        assert not (await client.fabrics.ListLinks(not_up)).links
    assert [text for text in page.console if "400" not in text and "404" not in text] == []


@pytest.mark.deep
async def test_axe_finds_nothing_that_keeps_people_out(still: World) -> None:
    """By axe's rules, every view has names, roles, an order and a contrast that all can use.

    This is checked on a desk and on a phone, in light and in dark colours. No view is wider than
    its window.
    """
    axe = (resources.files("axe_playwright_python") / "axe.min.js").read_text()
    violations = """axe.run(document, {resultTypes: ["violations"]}).then((found) =>
      found.violations.map((one) => [one.id, one.nodes.map((node) => node.html)]))"""
    page = still.page
    await still.open("/flows")
    await page.until("document.querySelector('tbody a')")
    flow = await page.does("document.querySelector('tbody a').search")
    for width, dark in WINDOWS[: examples(2, 4)]:
        await page.window(width, 900, dark=dark)
        for path, there in {**VIEWS, f"/flow{flow}": "#reasons"}.items():
            await still.open(path)
            await page.until(f"document.querySelector('{there}')")
            await page.does(FEWER_ROWS)
            await page.does(f"{axe}; 0")
            found = await page.does(violations)
            assert found == [], (path, width, dark, json.dumps(found))
            assert await page.does("document.body.scrollWidth <= innerWidth"), (path, width)
    assert await page.does("axe.version") >= "4"


@pytest.mark.deep
async def test_a_page_left_open_for_a_day_grows_no_more(still: World) -> None:
    """A day of changes, one every five seconds, adds no nodes and no memory to the page."""
    page, changes = still.page, examples(300, 17_280)
    played = await page.send("Page.addScriptToEvaluateOnNewDocument", source=PLAYED)
    try:
        for path in ("", "/events", "/plans"):
            await still.open(path)
            await page.until("window.played && window.tell")
            await page.does("tell(0, 100)")
            await page.until(f"document.querySelector('{VIEWS[path]}')")
            before = await grown(page)
            await page.does(f"tell(100, {changes})")
            after = await grown(page)
            shown = await page.does("document.querySelector('main').textContent")
            assert f"{changes - 1}" in shown, path
            assert after["Nodes"] <= before["Nodes"] + 50, path
            assert after["JSEventListeners"] <= before["JSEventListeners"] + 5, path
            assert after["JSHeapUsedSize"] <= before["JSHeapUsedSize"] + (1 << 20), path
        assert page.console == []
    finally:
        await page.send("Page.removeScriptToEvaluateOnNewDocument", **played)


async def grown(page: Page) -> dict[str, float]:
    """Return the page's metrics after a garbage collection."""
    await page.send("HeapProfiler.collectGarbage")
    told = (await page.send("Performance.getMetrics"))["metrics"]
    return {one["name"]: one["value"] for one in told}


async def test_a_lost_link_is_seen_and_so_is_its_return(controller: Controller, page: Page) -> None:
    """The page shows a lost link and the plan that came of it, and later its return."""
    async with world(controller, page, "lossy", POD, JOB) as given:
        steps = StepRunner(LiveFabric(given.fleet))
        await given.open("")
        await page.until("document.querySelector('#verdict')")
        link = int(np.flatnonzero(POD.structure.nodes.kind[POD.structure.links.a] != 0)[0])
        await steps.do(Step(0.0, StepKind.CUT, (cable_name(POD, link),)))
        given.fleet.converge()
        await page.until("document.querySelector('#down li')")
        told = await page.does("document.querySelector('#down').textContent")
        assert POD.link_name(link) in told
        await page.until("document.querySelector('#verdict').innerText.includes('1 link is down')")
        await page.click("#down a")
        await page.until("document.querySelector('main .facts')?.innerText.includes('Agents say')")
        assert "Agents say\ndown" in await page.does("document.querySelector('main').innerText")
        await page.click("nav a[href='/fabrics/lossy/plans']")
        lost = f"link lost: {POD.link_name(link)}"
        await page.until(f"document.querySelector('tbody')?.innerText.includes('{lost}')")
        changes = await page.does(
            "[...document.querySelectorAll('code')].map((one) => one.innerText)"
        )
        assert len(changes) == 2  # the fabric and the job
        assert all(changes)
        await page.click("tbody a[href^='/fabrics/lossy/comparison?']")
        await page.until(f"document.querySelector('#moved')?.innerText.includes('{lost}')")
        await page.until("document.querySelector('tbody a[href^=\"/fabrics/lossy/flow?\"]')")
        await given.open("/map")
        await page.until("document.querySelector('[data-painted]')")
        await steps.do(Step(0.0, StepKind.MEND, (cable_name(POD, link),)))
        given.fleet.converge()
        await given.open("")
        await page.until("document.querySelector('#verdict') && !document.querySelector('#down')")
        assert page.console == []


async def test_an_open_view_follows_what_the_controller_sees(
    controller: Controller, page: Page
) -> None:
    """The doctor's view tells of an agent that went while it was open; a link keeps the focus.

    A view that could not be read is read again by itself. Long names fit into a narrow window.
    """
    first = replace(JOB, name="f" * 63, hosts=JOB.hosts[:2], parallelism=Parallelism(dp=8))
    second = replace(first, name="second", hosts=JOB.hosts[2:])
    async with world(controller, page, "followed", POD, first) as given:
        await page.window(390, 800)
        await given.open("")
        await page.until("document.querySelector('#slowest')")
        assert await page.does("document.body.scrollWidth <= innerWidth")
        await given.open("/health")
        await page.until("document.querySelector('#findings')")
        await page.until("document.querySelector('#live').textContent === 'Live'")
        await given.fleet.stop(POD.structure.index["l0"])
        gone = "1 agent has no session with this controller: l0"
        await page.until(f"document.querySelector('#findings').innerText.includes('{gone}')")

        await page.send("Network.enable")
        network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        await page.send("Network.emulateNetworkConditions", offline=True, **network)
        await page.click("nav a[href='/fabrics/followed/jobs']")
        await page.until("document.querySelector('main [role=alert]')")
        await page.send("Network.emulateNetworkConditions", offline=False, **network)
        await page.until("document.querySelector('main tbody a')")

        await page.does("document.querySelector('main tbody a').focus()")
        async with given.client() as client:
            await client.submit(second)
        await page.until("document.querySelectorAll('main tbody a').length === 2")
        assert await page.does("document.activeElement.innerText") == first.name
        assert [text for text in page.console if "ERR_INTERNET" not in text] == []


async def test_keys_stay_where_they_are_while_plans_follow_each_other(
    controller: Controller, page: Page
) -> None:
    """The focus stays on one of several links to the same view, and on a table that was scrolled.

    The second page of a plan that was replaced leads to the first page of the new one. Flows that
    belong to no job have no link to a job.
    """
    async with world(controller, page, "kept", POD, JOB) as given:
        await given.open("")
        await page.until("document.querySelector('#slowest')")
        await page.does(f"window.link = {STATES}[2]; link.focus()")
        async with given.client() as client:
            asked = plan_pb2.ListRoutesRequest(parent="fabrics/kept/plan", page_size=1)
            second_page = (await client.plans.ListRoutes(asked)).next_page_token
            await client.delete_job(JOB.name)
            flow = flows_of(POD, ("l2-h0-n0", "l3-h0-n0", 400.0, 1, "", ""))
            await client.put_demands("d", POD, flow)
        await page.until("!link.isConnected")
        assert await page.does(f"{STATES}.indexOf(document.activeElement)") == 2

        await given.open(f"/flows?{urlencode({'page': second_page})}")
        await page.until("document.querySelector('main .verdict')")
        await page.click("main .verdict a")
        await page.until("document.querySelector('tbody')")
        assert await page.does("location.search") == ""

        await page.window(200, 800)
        await given.open("/map")
        await page.until("document.querySelector('[data-painted] tbody')")
        await page.does("window.table = document.querySelector('main .wide'); table.focus()")
        assert await page.does("table.scrollLeft = 9; table.scrollLeft") == 9
        async with given.client() as client:
            await client.submit(JOB)
        await page.until("!table.isConnected")
        assert await page.does("document.activeElement === document.querySelector('main .wide')")
        assert await page.does("document.activeElement.scrollLeft") == 9

        await given.open("/link?source=l2-h0-n0&target=l2")
        await page.until("document.querySelector('tbody')")
        assert (await page.does(CELLS))[0][1] == "none"
        assert await page.does("[...document.links].every((one) => one.innerText)")
        assert [text for text in page.console if "409" not in text] == []


def worded(path: common_pb2.Path) -> str:
    """Return a path as text: its nodes, each with the key of the link before it unless it is 0."""
    before = ["", *(f"[{key}]" if key != "0" else "" for key in path.keys)]
    return " → ".join(map("".join, zip(before, path.nodes, strict=True)))


async def test_paths_name_the_parallel_link_that_they_take(
    controller: Controller, page: Page
) -> None:
    """Where links are parallel, a path has the key of its link before the node that it leads to.

    The key 0 is left out. This holds for paths, for backups and for what moved between two plans.
    """
    nodes: list[dict[str, object]] = [{"id": "s0", "kind": "spine"}]
    nodes += [{"id": f"l{n}", "kind": "leaf"} for n in range(2)]
    nodes += [
        {"id": f"h{n}-n{m}", "kind": "nic", "host": f"h{n}", "rail": m}
        for n in range(2)
        for m in range(2)
    ]
    ends = [(f"l{n}", f"h{n}-n{m}", 0) for n in range(2) for m in range(2)]
    ends += [(f"l{n}", "s0", key) for n in range(2) for key in (0, 7)]
    edges = [{"source": a, "target": b, "key": key, "gbps": 400.0} for a, b, key in ends]
    fabric = parse_fabric({"multigraph": True, "nodes": nodes, "edges": edges}, "a test")
    job = Job("j", ("h0", "h1"), 2, Parallelism(dp=4),
              (Collective(Operation.ALL_TO_ALL, Group.DP, 1 << 30),))  # fmt: skip
    keyed, plain = ("h0-n1 → l0 → [7]s0 → [7]l1 → h1-n1", "h0-n0 → l0 → s0 → l1 → h1-n0")
    async with world(controller, page, "parallel", fabric, job) as given:
        async with given.client() as client:
            _, routes = await client.list_routes()
        told = {route.flow: worded(route.paths[0]) for route in routes}
        assert {keyed, plain} <= {*told.values()}, "the two rails take links of their own"
        await given.open("/flows")
        await page.until("document.querySelector('tbody')")
        assert {row[0]: row[-1] for row in await page.does(CELLS)} == told

        (of_keyed,) = (route for route in routes if told[route.flow] == keyed)
        for route in routes:
            await given.open(f"/flow?{urlencode({'id': route.flow})}")
            await page.until("document.querySelector('#reasons')")
            assert (await page.does(CELLS))[-1] == ["1", worded(route.backups[0])]

        steps = StepRunner(LiveFabric(given.fleet))
        (row,) = fabric.find_links("l0", "s0", "7")
        await steps.do(Step(0.0, StepKind.CUT, (cable_name(fabric, row),)))
        given.fleet.converge()
        await given.open("/plans")
        lost = "link lost: l0,s0,7"
        await page.until(f"document.querySelector('tbody')?.innerText.includes('{lost}')")
        await page.click("tbody a[href^='/fabrics/parallel/comparison?']")
        await page.until("document.querySelector('tbody a[href^=\"/fabrics/parallel/flow?\"]')")
        async with given.client() as client:
            _, routes = await client.list_routes()
        (now,) = (worded(route.paths[0]) for route in routes if route.flow == of_keyed.flow)
        assert [of_keyed.flow, keyed, now] in await page.does(CELLS)

        await given.open("/what-if")
        await page.until("document.querySelector('#named')")
        await page.does("document.querySelector('#named').value = 'l1,s0,7'")
        await page.click("button")
        await page.until("document.querySelector('#answer tbody')")
        assert page.console == []


async def test_names_with_markup_are_names(controller: Controller, page: Page) -> None:
    """Ids that look like elements are shown as text on every view that has them.

    The form for what-if takes the links that it offers, although their ids have commas.
    """
    nodes: list[dict[str, object]] = [{"id": "s0", "kind": "spine"}]
    nodes += [{"id": f"{MARKUP}{leaf}", "kind": "leaf"} for leaf in range(2)]
    nodes += [{"id": f"<b>h{n}</b>", "kind": "nic", "host": f"h{n}"} for n in range(2)]
    edges: list[dict[str, object]] = [
        {"source": f"{MARKUP}{n}", "target": end, "gbps": 400.0}
        for n in range(2)
        for end in ("s0", f"<b>h{n}</b>")
    ]
    fabric = parse_fabric({"nodes": nodes, "edges": edges}, "a test")
    job = Job("j", ("h0", "h1"), 1, Parallelism(dp=2),
              (Collective(Operation.ALL_REDUCE, Group.DP, 1 << 30),))  # fmt: skip
    async with world(controller, page, "marked", fabric, job) as given:
        for path, there in (("", "#slowest"), ("/map", "tbody"), ("/job?id=j", "#guilty"),
                            ("/flows", "tbody"), ("/events", "tbody")):  # fmt: skip
            await given.open(path)
            await page.until(f"document.querySelector('{there}')")
            assert await page.does("document.querySelectorAll('main img, main b').length") == 0
        await given.open("/flows")
        await page.until("document.querySelector('tbody')")
        assert MARKUP in await page.does("document.querySelector('tbody').textContent")
        await page.click("tbody a")
        await page.until("document.querySelector('#reasons')")
        assert await page.does("document.querySelectorAll('main img, main b').length") == 0
        await given.open("/what-if")
        await page.until("document.querySelector('#named')")
        await page.does(OFFER % ('"link"', '""'))
        offered = "document.querySelector('#names option')"
        await page.until(offered)
        await page.does(f"document.querySelector('#named').value = {offered}.value")
        assert MARKUP in await page.does("document.querySelector('#named').value")
        await page.click("button")
        await page.until("document.querySelector('#answer tbody')")
        assert page.console == []


async def test_drills_are_shown_as_the_emulator_tells_them(tmp_path: Path, page: Page) -> None:
    """The reports of a folder are listed and opened; an empty folder is told as such."""
    folder = tmp_path / "reports"
    options = ("--web-port=0", f"--web-reports={folder}")
    async with (
        Controller(tmp_path, *options) as controller,
        Client(controller.api, "fabrics/f1") as client,
    ):
        await client.put_fabric(POD)
        await page.open(f"{controller.page}fabrics/f1/drills")
        await page.until("document.querySelector('main').innerText.includes('none yet')")
        write(folder, [held()])
        await page.open(f"{controller.page}fabrics/f1/drills")
        await page.until("document.querySelector('tbody a')")
        await page.click("tbody a")
        await page.until("location.pathname === '/reports/remote-link.html'")
        await page.until("document.body.innerText.includes('The one expectation held')")
        assert page.console == []


async def test_a_page_that_was_left_is_no_viewer(tmp_path: Path, page: Page) -> None:
    """A page that the browser keeps to go back to holds no stream, so it counts as no viewer."""
    async with (
        Controller(tmp_path, "--web-port=0", "--web-viewers=3") as controller,
        Client(controller.api, "fabrics/f1") as client,
    ):
        await client.put_fabric(POD)
        text = "document.querySelector('#live').textContent"
        for view in ("map", "jobs", "flows", "plans", "what-if", "events"):
            await page.open(f"{controller.page}fabrics/f1/{view}")
            told = f"{text}.startsWith('Live') || {text}.includes('watch already')"
            await page.until(f"location.pathname.endsWith('/{view}') && ({told})")
            assert await page.does(text) == "Live", view
        await page.does("history.back()")
        await page.until(f"location.pathname.endsWith('/what-if') && {text} === 'Live'")


async def test_the_page_comes_back_with_the_controller(tmp_path: Path, page: Page) -> None:
    """While the controller is away the page says so; with the next one it is live again.

    A screen reader says once that it is away, although the page counts the seconds. If it hears
    nothing for a minute, as after a sleep or in a network that forgot its connections, it makes new
    ones. If there is no such fabric it says so, and who may not look any more is asked who they
    are.
    """
    port, api = free_port(), free_port()
    options = (f"--web-port={port}", f"--listen=127.0.0.1:{api}")
    async with (
        Controller(tmp_path, *options) as controller,
        Client(controller.api, "fabrics/f1") as client,
    ):
        await client.put_fabric(POD)
        await page.open(f"{controller.page}fabrics/f1")
        await page.until("document.querySelector('#live').textContent === 'Live'")
        await controller.kill()
    await page.until("document.querySelector('#live').textContent.startsWith('Not live')")
    await page.does(SPOKEN)
    await page.until("new Set(window.shown).size > 2")
    assert await page.does("window.spoken") == []
    assert await page.does("document.querySelector('[role=status]').textContent") == "Not live"
    assert await page.does("document.querySelector('#verdict') !== null")
    await page.does("window.same = true")
    await page.click("nav a[href='/fabrics/f1/jobs']")
    jobs = "document.querySelector('main [role=alert], main .note')?.textContent"
    await page.until(f"{jobs} === 'the controller does not answer'")
    async with Controller(tmp_path, *options) as controller:
        await page.until("document.querySelector('#live').textContent === 'Live'")
        await page.until(f"{jobs} === 'Jobs by name: None.'")
        assert await page.does("window.same")
        await page.does(HANGING)
        await page.click("nav a[href='/fabrics/f1/jobs']")
        again = "window.ended === 'the connection was lost' && window.streams"
        await page.until(f"(window.slept += 60_000, {again})")  # a beat may come in between
        await page.until("document.querySelector('#live').textContent === 'Live'")
        await page.open(f"{controller.page}fabrics/none")
        none = "fabrics/none does not exist"
        await page.until(f"document.querySelector('#live').textContent.startsWith('{none}')")
        await page.does("document.cookie = 'heddle_token=old; path=/'")
        why = "the token is unknown or has expired"
        await page.until(f"document.querySelector('#why')?.textContent.startsWith('{why}')")
        await page.does("document.cookie = 'heddle_token=; path=/; max-age=0'")
    logged = ("ERR_", "404", "401")  # the browser itself logs what is refused
    assert [text for text in page.console if not any(one in text for one in logged)] == []


async def test_a_follower_says_so_and_so_does_who_has_lost_its_store(
    tmp_path: Path, page: Page
) -> None:
    """A follower says so; without its store it shows the past and says so, and comes back."""
    live = "document.querySelector('#live').textContent"
    with RedisServer(tmp_path / "redis", *ALWAYS) as redis:
        async with two_replicas(tmp_path, redis.url) as replicas:
            async with Client(replicas[0].api, "fabrics/f1") as client:
                await client.put_fabric(POD)
            for one in itertools.cycle(replicas):  # on a busy machine the lead may have moved
                await page.open(f"{one.page}fabrics/f1")
                await page.until(f"{live}.startsWith('Live')")
                if await page.does(f"{live} === 'Live, from a follower'"):
                    break
            named = await page.does("document.querySelector('#main').textContent")
            assert "(this controller)" not in named
            redis.kill()
            await page.until(f"{live}.startsWith('Store lost')")
            await page.until("document.querySelector('#verdict').textContent.includes('past')")
            redis.start()
            await page.until(f"{live}.startsWith('Live')")
            await page.until("!document.querySelector('#verdict').textContent.includes('past')")
            assert page.console == []


@asynccontextmanager
async def two_replicas(path: Path, store: str) -> AsyncIterator[tuple[Controller, Controller]]:
    """Yield two controllers, the first of which has led."""
    folders = [path / "leader", path / "follower"]
    for folder in folders:
        folder.mkdir()
    options = (f"--store={store}", "--web-port=0")
    async with Controller(folders[0], *options) as leader:
        await asyncio.to_thread(
            wait_until, lambda: '"leading"' in leader.log.read_text(), "the first to lead"
        )
        async with Controller(folders[1], *options) as follower:
            yield leader, follower
