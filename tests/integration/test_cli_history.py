"""``heddle history``, ``plan diff`` and ``plan rollback`` with a real controller."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.integration.test_cli_controller import begun
from tests.integration.test_cli_withdrawal import plan_such_that
from tests.support.operating import Controller, controlling
from tests.support.waiting import PATIENCE

FLOWS = 16
"""Number of flows of both jobs."""


async def planned(controller: Controller, above: int = 0, flows: int = FLOWS) -> int:
    """Wait for a plan above this generation that has so many flows; return its generation.

    There are no agents, so a watch of the jobs could end before they are planned.
    """
    plan = await plan_such_that(
        controller,
        lambda one: one.get("routed_count") == flows and int(one["generation"]) > above,
    )
    return int(plan["generation"])


async def plans(controller: Controller) -> Any:
    """Return what the controller remembers of plans, newest first."""
    done = await controller.does("history", "--json")
    assert done.code == 0, done.err
    return [event["plan"] for event in reversed(done.json) if "plan" in event]


async def rolled_back(controller: Controller) -> None:
    """Wait until the newest plan goes back to an earlier one."""
    async with asyncio.timeout(PATIENCE):
        while True:
            newest, *_ = await plans(controller)
            if any(cause["kind"] == "ROLLED_BACK" for cause in newest["causes"]):
                return
            await asyncio.sleep(0.05)


async def test_each_plan_tells_what_led_to_it_and_two_are_compared(tmp_path: Path) -> None:
    """History names the cause of each plan; a diff names each flow that moved between two.

    A rollback brings the earlier plan back, and is released once.
    """
    async with controlling(tmp_path) as controller:
        await begun(tmp_path, controller)
        before = await planned(controller)
        assert (await controller.does("fabric", "link", "l0,s1", "drained")).code == 0
        after = await planned(controller, before)
        newest, *_ = await plans(controller)
        assert newest["causes"] == [{"kind": "LINK_DRAINED", "names": ["l0,s1,0"], "count": 1}]
        table = (await controller.does("history", "--since", "1h")).out
        for words in (
            "link drained: l0,s1,0",
            "job came: ",
            ": drained",
            "fabric put",
        ):
            assert words in table, words
        events = (await controller.does("history", "--json")).json
        changes = [one["change"]["action"] for one in events if "change" in one]
        assert changes[-1] == "set_link_state"
        assert "change" in events[0], "what was asked for comes before the plans that followed"

        told = (await controller.does("plan", "diff", str(before), str(after), "--json")).json
        assert told["causes"] == newest["causes"]
        assert len(told["moved"]) == told["moved_count"] == newest["changed_count"] > 0
        for moved in told["moved"]:
            was, now = (moved[side][0]["nodes"] for side in ("before", "after"))
            assert {"l0", "s1"} <= {*was}
            assert not {"l0", "s1"} <= {*now}
        same = await controller.does("plan", "diff", str(after), str(after), "--json")
        assert same.json["causes"] == []
        text = await controller.does("plan", "diff", str(before))
        flow, *ways = text.out.partition("flow ")[2].splitlines()[:3]
        assert (text.code, flow) == (0, told["moved"][0]["flow"])
        assert [way[:4] for way in ways] == ["  - ", "  + "], "one path went, another came"

        assert (await controller.does("fabric", "link", "l0,s1", "up")).code == 0
        done = await controller.does("plan", "rollback", str(before), "--for", "30m")
        assert (done.code, done.out.startswith(f"back to plan {before} until ")) == (0, True)
        shown = await plan_such_that(
            controller, lambda plan: int(plan.get("rollback", {}).get("generation", 0)) == before
        )
        assert "rollback" in shown
        await rolled_back(controller)
        again = (await controller.does("plan", "diff", str(before), "--json")).json
        assert again["moved"] == []
        assert "kept to" in (await controller.does("show", "plan")).out
        assert (await controller.does("plan", "release")).code == 0
        twice = await controller.does("plan", "release")
        assert (twice.code, "a rollback of fabrics/pod/plan does not exist" in twice.err) == (
            2,
            True,
        )


async def test_a_job_that_is_suspended_and_resumed_is_told_as_such(tmp_path: Path) -> None:
    """History says "suspended" and "resumed" of a job, and "gone" only of one that is deleted.

    The controller that plans it again need not have led while it was suspended.
    """
    told = []
    async with controlling(tmp_path) as controller:
        await begun(tmp_path, controller)
        generation = await planned(controller)
        assert (await controller.does("job", "suspend", "blue")).code == 0
        generation = await planned(controller, generation, 8)
        newest, *_ = await plans(controller)
        told += [(cause["kind"], cause["names"]) for cause in newest["causes"]]
        controller.process.kill()
        await controller.process.wait()
    async with controlling(tmp_path) as controller:
        for word, flows in (("resume", FLOWS), ("delete", 8)):
            assert (await controller.does("job", word, "blue")).code == 0
            generation = await planned(controller, generation, flows)
            newest, *_ = await plans(controller)
            told += [(cause["kind"], cause["names"]) for cause in newest["causes"]]
        table = (await controller.does("history")).out
    kinds = ["JOB_SUSPENDED", "JOB_RESUMED", "JOB_GONE"]
    assert told == [(kind, ["blue"]) for kind in kinds]
    for words in ("job suspended: blue", "job resumed: blue", "job gone: blue"):
        assert words in table, words


async def test_a_job_without_flows_in_one_of_two_plans_has_no_share_there(tmp_path: Path) -> None:
    """A job that came between two plans is not told as a job that was fast and became slower."""
    async with controlling(tmp_path) as controller:
        await begun(tmp_path, controller)
        both = await planned(controller)
        assert (await controller.does("fabric", "switch", "s1", "drained")).code == 0
        slower = await planned(controller, both)
        for name in ("blue", "red"):
            assert (await controller.does("job", "delete", name)).code == 0
        none = await plan_such_that(controller, lambda one: not one.get("routed_count"))
        came = (await controller.does("plan", "diff", none["generation"], str(slower))).out
        gone = (await controller.does("plan", "diff", str(slower), none["generation"])).out
    rows = {line.split()[0]: line.split()[1:] for line in came.splitlines()}
    back = {line.split()[0]: line.split()[1:] for line in gone.splitlines()}
    for job in {"blue", "red"} & rows.keys():
        before, after, flow = rows[job]
        assert (before, flow.partition("/")[0]) == ("-", job)
        assert back[job] == [after, "-", flow]
    assert {"blue", "red"} & rows.keys(), came


async def test_a_rollback_names_the_flows_that_did_not_get_their_paths_back(tmp_path: Path) -> None:
    """Flows whose old paths lead over a drained link are named with both paths; later, none is."""
    async with controlling(tmp_path) as controller:
        await begun(tmp_path, controller)
        before = await planned(controller)
        assert (await controller.does("fabric", "link", "l0,s1", "drained")).code == 0
        after = await planned(controller, before)
        gone = (await controller.does("plan", "diff", str(before), str(after), "--json")).json
        over = {one["flow"] for one in gone["moved"] if "s1" in one["before"][0]["nodes"]}
        assert over

        done = await controller.does("plan", "rollback", str(before), "--json")
        assert done.code == 0, done.err
        assert {one["flow"] for one in done.json["not_back"]} == over
        assert done.json["not_back_count"] == len(over)
        assert all("s1" not in one["after"][0]["nodes"] for one in done.json["not_back"])
        text = (await controller.does("plan", "rollback", str(before))).out
        assert f"their paths back: {len(over)}; since then: link drained: l0,s1,0" in text
        assert all(flow in text for flow in over)

        assert (await controller.does("fabric", "link", "l0,s1", "up")).code == 0
        done = await controller.does("plan", "rollback", str(before), "--json")
        assert (done.json["not_back"], done.json["not_back_count"]) == ([], 0)


async def test_what_is_asked_wrong_is_refused_with_the_cure(tmp_path: Path) -> None:
    """Unknown generations and invalid times are refused, and the error says why."""
    async with controlling(tmp_path) as controller:
        none = await controller.does("plan", "diff", "1")
        assert none.code == 2
        await begun(tmp_path, controller)
        await planned(controller)
        ahead = await controller.does("plan", "diff", "1", "999")
        assert (ahead.code, "no generation 999 yet" in ahead.err) == (2, True)
        gone = await controller.does("plan", "rollback", "999")
        assert (gone.code, "no generation 999 yet" in gone.err) == (2, True)
        odd = await controller.does("history", "--since", "yesterday")
        assert (odd.code, "give a number and s, m, h or d" in odd.err) == (2, True)
