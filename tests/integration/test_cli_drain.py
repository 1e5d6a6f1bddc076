"""``heddle drain`` and ``undrain`` with a real controller and real agents, one of them slow."""

from __future__ import annotations

import asyncio
import json
import random
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle_controller.model.demand import resolve
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import (
    fabric_document,
    parse_fabric,
    save_fabric_file,
)
from heddle_controller.model.files.flows_file import load_demands
from heddle_emulator.fleet import Fleet
from heddle_emulator.walk import Measurement, crossing, measure
from tests.integration.test_cli_controller import FABRIC
from tests.integration.test_cli_withdrawal import (
    SlowFleet,
    begin,
    end,
    has_entries,
    plan_such_that,
    runs,
)
from tests.support.direct_planner import DirectPlanner
from tests.support.operating import Controller, controlling, operating
from tests.support.store_samples import clos
from tests.support.waiting import LIMITS, PATIENCE

CLOSE = 0.01
HEADER = "flow,src,dst,gbps,job,phase\n"


def drawn_flows(fabric: Fabric, seed: int) -> str:
    """Return a flows.csv with two flows from every NIC to NICs of other leaves.

    Destinations and rates are drawn.
    """
    rng = random.Random(seed)
    ids = fabric.structure.nodes.ids
    nics = [ids[row] for row in np.flatnonzero(fabric.structure.nodes.host >= 0).tolist()]
    lines = [
        f"f{i},{nic},{rng.choice([n for n in nics if n[:2] != nic[:2]])},"
        f"{rng.uniform(20.0, 200.0):.1f},j{i % 3},\n"
        for i, nic in enumerate(nics * 2)
    ]
    return HEADER + "".join(lines)


async def given(path: Path, controller: Controller, flows: str) -> None:
    """Import the fabric and put a demand set."""
    fabric, demands = path / "pod.json", path / "flows.csv"
    await asyncio.to_thread(save_fabric_file, FABRIC, fabric)
    await asyncio.to_thread(demands.write_text, flows)
    for words in (("fabric", "import", fabric), ("demand", "put", "d", demands)):
        done = await controller.does(*words)
        assert done.code == 0, done.err


def links_of(switch: str) -> list[int]:
    """Return the rows of a switch's links."""
    links, row = FABRIC.structure.links, FABRIC.structure.index[switch]
    return np.flatnonzero((links.a == row) | (links.b == row)).tolist()


def seen(path: Path, fleet: Fleet) -> Measurement:
    """Return what packets do in the agents' tables, as the emulator measures it."""
    flows = resolve(load_demands(path / "flows.csv"), FABRIC, origin="flows.csv")
    return measure(fleet.world, flows, fleet.switches)


def worst(certificate: Any) -> float:
    """Return the highest utilisation in a certificate given as JSON."""
    return float(certificate["max_utilization"])


async def test_a_drain_does_as_predicted_and_then_no_packet_comes(tmp_path: Path) -> None:
    """After a drain the worst link is as predicted, and no packet uses what was drained."""
    async with controlling(tmp_path) as controller:
        await given(tmp_path, controller, drawn_flows(FABRIC, 1))
        async with Fleet(FABRIC, [controller.address], name="fabrics/pod") as fleet:
            await fleet.connected(PATIENCE)
            await plan_such_that(controller, has_entries)
            for what in ("s3", "l0,s1", "s0"):
                done = await controller.does("drain", what, "--force", "--json")
                assert done.code == 0, done.err
                assert done.json["safe_to_unplug"]
                found = seen(tmp_path, fleet)
                rows = links_of(what) if "," not in what else list(FABRIC.find_links("l0", "s1"))
                assert not len(crossing(found.walk, rows)), what
                predicted = worst(done.json["prediction"]["after"]["certificate"])
                assert max(found.worst.values()) == pytest.approx(predicted, rel=CLOSE), what

                again = await controller.does("undrain", what)
                assert (again.code, again.out) == (0, f"{what} takes new paths\n")
                stands = await controller.does("fabric", "show")
                assert "drained" not in stands.out


async def test_who_would_suffer_is_told_and_nothing_is_changed(tmp_path: Path) -> None:
    """A drain that slows a job or cuts hosts off is refused; the error has figures and names.

    With ``--force`` it is done, and the command exits with 3 while flows stay on the switch.
    """
    lines = "".join(f"f{i},l0-h0-n{i},l1-h0-n{i},400,big,\n" for i in range(4))
    async with controlling(tmp_path) as controller:
        await given(tmp_path, controller, HEADER + lines)
        async with Fleet(FABRIC, [controller.address], name="fabrics/pod") as fleet:
            await fleet.connected(PATIENCE)
            plan = await plan_such_that(controller, has_entries)

            slower = await controller.does("drain", "s1")
            assert (slower.code, slower.out.splitlines()[0]) == (
                2,
                "without s1: 1 flow moves, worst link 1.000 -> 2.000",
            )
            assert "job big: its slowest flow, f" in slower.err
            assert "would get 50.0% of its demand instead of 100.0%" in slower.err
            assert "--force" in slower.err

            for words in (("--dry-run",), ()):
                told = await controller.does("drain", "s1", "--json", *words)
                assert (told.code, told.json["harms"][0][:8]) == (2, "job big:")
            late = await controller.does("drain", "s1", "--force", "--seconds", "-1")
            assert (late.code, "--seconds -1: give a number above 0" in late.err) == (2, True)

            cut = await controller.does("drain", "l0", "--dry-run")
            assert cut.code == 2
            assert "l0 was not drained: it cuts off host l0-h0;" in cut.err
            assert "4 flows (f0, f1, f2, f3) have no way but over l0" in cut.err
            unknown = await controller.does("drain", "nobody")
            assert (unknown.code, "'nobody' is not a switch" in unknown.err) == (2, True)
            now = (await controller.does("show", "plan", "--json")).json
            assert now["generation"] == plan["generation"]
            assert "drained" not in (await controller.does("fabric", "show")).out

            forced = await controller.does("drain", "l0", "--force")
            assert forced.code == 3, forced.out + forced.err
            assert "forced: it cuts off host l0-h0" in forced.out
            assert "NOT safe to unplug: 4 flows stay on l0, the only way" in forced.out
            assert len(crossing(seen(tmp_path, fleet).walk, links_of("l0"))) == 4
            warned = await controller.does("doctor")
            assert (warned.code, "4 flows have no way but over drained links" in warned.out) == (
                1,
                True,
            )
            assert "heddle undrain l0\n" in warned.out


async def test_hosts_and_nics_are_not_drained_and_the_error_says_what_to_do(tmp_path: Path) -> None:
    """A host is freed by moving its jobs, and a NIC by draining its link."""
    async with controlling(tmp_path) as controller:
        await given(tmp_path, controller, HEADER)
        nodes = FABRIC.structure.nodes
        row = int(np.flatnonzero(nodes.host >= 0)[0])
        for name, cure in (
            (FABRIC.structure.host_names[nodes.host[row]], "heddle job replace"),
            (nodes.ids[row], "name its link, as NIC,LEAF"),
            ("nobody", "see heddle fabric show --links"),
        ):
            done = await controller.does("drain", name)
            assert done.code == 2
            assert f"'{name}' is" in done.err
            assert cure in done.err


async def test_it_is_not_safe_while_a_switch_holds_what_no_plan_wants(tmp_path: Path) -> None:
    """The command waits until the last switch holds the new plan, and names that switch."""
    async with controlling(tmp_path) as controller:
        await given(tmp_path, controller, drawn_flows(FABRIC, 4))
        async with SlowFleet(controller) as fleet:
            await fleet.connected(PATIENCE)
            await plan_such_that(controller, has_entries)
            slow = fleet.hold_one()
            routes = (await controller.does("show", "routes")).out
            spine = re.findall(rf"\b{slow} (s\d)\b", routes)[0]
            waiting = await begin(controller, "drain", spine, "--force")
            await plan_such_that(controller, partial(lacks, slow))
            assert f"waiting for {slow} to hold that plan" in await in_vain(controller, spine)
            assert runs(waiting)
            assert len(crossing(seen(tmp_path, fleet).walk, links_of(spine)))
            fleet.gate.open()
            done = await end(waiting)
            assert (done.code, "safe to unplug: no switch" in done.out) == (0, True), done.err
            assert not len(crossing(seen(tmp_path, fleet).walk, links_of(spine)))


async def in_vain(controller: Controller, what: str) -> str:
    """Drain what does not become idle in time; return the error."""
    for seconds in LIMITS:
        done = await controller.does("drain", what, "--force", "--seconds", f"{seconds:g}")
        assert done.code == 2
        assert f"NOT safe to unplug after {seconds:g} s" in done.err
        if "the controller has not answered" not in done.err:
            return done.err
    raise AssertionError(f"nothing was heard of the drain in {LIMITS[-1]:g} s")


def lacks(switch: str, plan: Any) -> bool:
    """Return whether a switch does not hold the plan yet."""
    return switch in plan.get("unsettled_switches", [])


async def test_it_is_never_safe_while_the_overlay_is_withdrawn(tmp_path: Path) -> None:
    """The command says that routing hashes all flows, and exits with 3; later it is safe."""
    async with controlling(tmp_path) as controller:
        await given(tmp_path, controller, drawn_flows(FABRIC, 1))
        async with Fleet(FABRIC, [controller.address], name="fabrics/pod") as fleet:
            await fleet.connected(PATIENCE)
            await plan_such_that(controller, has_entries)
            assert (await controller.does("overlay", "withdraw")).code == 0
            done = await controller.does("drain", "s0", "--force")
            assert (done.code, "NOT safe to unplug: the overlay is withdrawn" in done.out) == (
                3,
                True,
            )
            assert "the prediction holds when that has ended" in done.out
            told = await controller.does("drain", "s0", "--force", "--json")
            assert (told.code, told.json["safe_to_unplug"]) == (3, False)
            assert (await controller.does("overlay", "restore")).code == 0
            assert (await controller.does("drain", "s0", "--force")).code == 0


async def test_of_two_drains_at_once_one_is_refused_if_both_would_harm(tmp_path: Path) -> None:
    """Either of the last two spines may go, but not both: one command drains, one refuses."""
    async with controlling(tmp_path) as controller:
        await given(tmp_path, controller, HEADER + "f,l0-h0-n0,l1-h0-n0,10,j,\n")
        async with Fleet(FABRIC, [controller.address], name="fabrics/pod") as fleet:
            await fleet.connected(PATIENCE)
            await plan_such_that(controller, has_entries)
            for spine in ("s2", "s3"):
                assert (await controller.does("drain", spine)).code == 0
            both = [await begin(controller, "drain", spine) for spine in ("s0", "s1")]
            done = await asyncio.gather(*map(end, both))
            assert sorted(one.code for one in done) == [0, 2]
            assert any("it cuts off hosts" in one.err for one in done)


async def test_undrain_says_what_it_does_not_do(tmp_path: Path) -> None:
    """It ends drains alone, not what else an operator set, and names what is in the way."""
    async with controlling(tmp_path) as controller:
        await given(tmp_path, controller, HEADER + "f,l0-h0-n0,l1-h0-n0,10,j,\n")
        async with Fleet(FABRIC, [controller.address], name="fabrics/pod") as fleet:
            await fleet.connected(PATIENCE)
            await plan_such_that(controller, has_entries)
            none = await controller.does("undrain", "s0")
            assert (none.code, none.out) == (0, "s0 was not drained: nothing changes\n")
            for name, what in (
                ("nobody", "is not a switch of the fabric: see heddle fabric show --links"),
                ("l0-h0", "is a host, not a switch: heddle job replace"),
                ("l0-h0-n0", "is a NIC, not a switch: name its link"),
            ):
                for command in ("drain", "undrain"):
                    other = await controller.does(command, name)
                    assert (other.code, f"{name!r} {what}" in other.err) == (2, True), other.err

            assert (await controller.does("drain", "s0")).code == 0
            of_switch = await controller.does("undrain", "l0,s0")
            assert (of_switch.code, of_switch.err) == (
                2,
                "error: l0,s0 is not drained itself; its switch s0 is drained: heddle undrain s0\n",
            )
            assert (await controller.does("drain", "l0,s0")).code == 0
            part = await controller.does("undrain", "s0")
            assert (part.code, part.out.splitlines()[1:]) == (
                0,
                ["  its link l0,s0,0 is drained: heddle undrain l0,s0,0"],
            )
            assert (await controller.does("fabric", "link", "l0,s0", "down")).code == 0
            again = await controller.does("drain", "l0,s0")
            assert (again.code, "l0,s0 stays down, as an operator set it" in again.out) == (0, True)
            down = await controller.does("undrain", "l0,s0")
            assert (down.code, "heddle fabric link l0,s0 up" in down.err) == (2, True)
            shown = (await controller.does("fabric", "show")).lines
            assert ["l0,s0,0", "down"] in [[line[0], *line[2:3]] for line in shown]


async def test_a_prediction_that_takes_too_long_can_be_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is drained, and the error names the command that drains without a prediction."""

    async def never(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(DirectPlanner, "what_if", never)
    async with operating(tmp_path) as o:
        await o.s.put_fabric()
        told = await o.does("drain", "s0", "--force")
        assert told.code == 2
        assert told.err.endswith("drain it without one: heddle fabric switch s0 drained\n")
        assert "--timeout" not in told.err
        cure = told.err.rpartition("heddle ")[2].split()
        assert "drained" not in (await o.does("fabric", "show")).out
        assert (await o.does(*cure)).code == 0
        assert "drained" in (await o.does("fabric", "show")).out


async def test_ids_may_have_commas(tmp_path: Path) -> None:
    """Commands on a running controller take links and switches as they print them, and without key.

    What the fabric lacks is refused.
    """
    text = json.dumps(fabric_document(clos()))
    for one in ("l0", "s0", "s1"):
        text = text.replace(f'"{one}"', f'"{one[0]},{one[1]}"')
    async with operating(tmp_path) as o:
        await o.s.store.put_fabric("f1", parse_fabric(json.loads(text), "commas"))
        for link in ("l,0,s,0,0", "s,0,l,0"):
            assert (await o.does("drain", link, "--dry-run")).code == 0
            done = await o.does("fabric", "link", link, "drained")
            assert (done.code, done.lines[1][:3]) == (0, ["l,0,s,0,0", "400", "drained"]), done.err
            done = await o.does("undrain", link)
            assert (done.code, done.out) == (0, f"{link} takes new paths\n")
        assert (await o.does("drain", "s,0", "--dry-run")).code == 0
        told = await o.does(
            "show", "what-if", "--down", "s,0", "--drain", "l,0,s,1", "--up", "l1,s,1"
        )
        assert told.code == 0, told.err
        assert (await o.does("undrain", "s,0")).out == "s,0 was not drained: nothing changes\n"
        lacks = (("l,0,s,9", "is no link of the fabric"), ("a,b", "not"), ("s,0", "is not a link"))
        for what, why in lacks:
            refused = await o.does("fabric", "link", what, "up")
            assert (refused.code, why in refused.err) == (2, True), refused.err
