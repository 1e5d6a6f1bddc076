"""``heddle doctor`` names the fault, with a real controller and real agents."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography import x509
from grpc import aio

from heddle.v1 import agent_pb2
from heddle.v1.agent_pb2_grpc import AgentServiceStub
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_controller.serve.security.certificates import Tls
from heddle_emulator.fleet import Fleet
from heddle_emulator.topology import clos
from tests.integration.certifying import Authority
from tests.integration.test_cli_controller import programmed
from tests.support.operating import Controller, Outcome, controlling, heddle, unlogged
from tests.support.serving import LOOPBACK, serving
from tests.support.waiting import PATIENCE

FABRIC = clos(leaves=2, spines=2, nics_per_leaf=4, nics_per_host=2, name="pod")
"""Each leaf has four NICs and two uplinks, so flows of all NICs are twice what uplinks carry."""
DEAD = "127.0.0.1:1"
"""Address at which nobody listens."""
JOBS = """\
- job: red
  hosts: [l0-h0, l1-h0]
  gpus_per_host: 2
  parallelism: {pp: 2, dp: 2}
- job: blue
  hosts: [l0-h1, l1-h1]
  gpus_per_host: 2
  parallelism: {pp: 2, dp: 2}
"""


async def begun(path: Path, controller: Controller) -> None:
    """Import the fabric and submit the jobs."""
    fabric, jobs = path / "pod.json", path / "jobs.yaml"
    await asyncio.to_thread(save_fabric_file, FABRIC, fabric)
    await asyncio.to_thread(jobs.write_text, JOBS)
    for words in (("fabric", "import", fabric), ("job", "submit", jobs)):
        done = await controller.does(*words)
        assert done.code == 0, done.err


def about(answer: Any, word: str) -> list[Any]:
    """Return the findings about one kind of thing, such as "link"."""
    return [one for one in answer["findings"] if one["about"] == word]


async def examined(controller: Controller, job: str = "red") -> Any:
    """Return what ``heddle doctor job`` prints as JSON."""
    done = await controller.does("doctor", "job", job, "--json")
    worse = [one for one in done.json["findings"] if one["severity"] != "SEVERITY_INFO"]
    assert done.code == bool(worse), "a warning or an error is told by the exit status"
    return done.json


async def test_a_slow_job_is_traced_to_its_link_and_who_shares_it(tmp_path: Path) -> None:
    """The doctor names a job's slowest flow, the link that limits it, its sharers and the drain.

    It also tells of a missing agent and of a withdrawn overlay.
    """
    async with controlling(tmp_path) as controller:
        await begun(tmp_path, controller)
        async with Fleet(FABRIC, [controller.address], name="fabrics/pod") as fleet:
            await fleet.connected(PATIENCE)
            await programmed(controller)
            before = await examined(controller)
            assert before["pinned"]
            assert before["slowest"]["share"] == 0.5
            assert before["slowest"]["utilization"] == 2.0
            assert before["expected_gbps"] == 200.0
            assert [one["job"] for one in before["sharers"]] == ["red", "blue"]
            (limit,) = about(before, "link")
            assert "job blue 400 Gbit/s in 1 flow" in limit["text"]
            assert "No plan does better (leaf-spine cannot be below 200.0%)" in limit["cure"]

            assert (await controller.does("drain", "s1", "--force")).code == 0
            after = await examined(controller)
            assert after["slowest"]["share"] == 0.25
            (moved, *_) = about(after, "event")
            assert "an operator has s1 drained" in moved["text"]
            assert "heddle undrain s1" in moved["cure"]
            of_s1 = [one for one in about(after, "event") if "undrain s1" in one.get("cure", "")]
            assert len(of_s1) == 1, "a switch is told once, not once for each of its links"

            told = await controller.does("doctor", "job", "red")
            assert told.code == 1, "it is the same without --json"
            assert ["expected", "100", "of", "400", "Gbit/s"] in told.lines
            first = next(line for line in told.lines if line[0] == "ERROR")
            assert first[1] == "link:"
            assert "-> Run, when the work is done: heddle undrain s1" in told.out
            unknown = await controller.does("doctor", "job", "nobody")
            assert (unknown.code, "nobody" in unknown.err) == (2, True)
            await fleet.stop(FABRIC.structure.index["l0"])
            await said(controller, "programmed", "No session here has the agent of l0")
            assert (await controller.does("overlay", "withdraw")).code == 0
            await said(controller, "programmed", "The whole fabric is on the underlay")
            assert "hashed by routing" in (await controller.does("doctor", "job", "red")).out


async def said(controller: Controller, word: str, text: str) -> None:
    """Wait until the doctor has a finding of a kind, with this text, about job "red"."""
    async with asyncio.timeout(PATIENCE):
        while True:
            found = about(await examined(controller), word)
            if any(text in one["text"] for one in found):
                return
            await asyncio.sleep(0.05)


async def once_switches_hold_the_plan(controller: Controller, *words: str) -> Outcome:
    """Return what the doctor says when no plan is to be made, or on its way to switches."""
    async with asyncio.timeout(PATIENCE):
        while True:
            done = await controller.does(*words)
            if "not hold plan" not in done.out and "have no plan yet" not in done.out:
                return done
            await asyncio.sleep(0.05)


async def test_an_installation_is_checked_and_the_exit_code_tells(tmp_path: Path) -> None:
    """``heddle doctor`` exits with 0 if all is well, and with 1 if agents or links are missing."""
    async with controlling(tmp_path) as controller:
        await begun(tmp_path, controller)
        alone = await controller.does("doctor")
        assert alone.code == 1
        assert "4 agents have no session with this controller: l0, l1, s0, s1" in alone.out
        async with Fleet(FABRIC, [controller.address], name="fabrics/pod") as fleet:
            await fleet.connected(PATIENCE)
            await programmed(controller)
            well = await once_switches_hold_the_plan(controller, "doctor")
            seen = f"as the controller at {controller.address} sees it"
            assert (well.code, well.out) == (0, f"all is well, {seen}\n")
            half = await controller.does("--server", f"{DEAD},{controller.address}", "doctor")
            assert half.code == 1
            assert f"controller: No answer from {DEAD}: cannot reach" in half.out
            assert half.out.endswith(f"\n{seen}\n")
            assert (await controller.does("drain", "s1", "--force")).code == 0
            drained = await once_switches_hold_the_plan(controller, "doctor", "--json")
            assert (drained.code, len(drained.json["findings"])) == (0, 1), drained.out
            assert "switch s1 (drained)" in about(drained.json, "links")[0]["text"]
            await fleet.set_link("l0", "s0", None, up=False)
            async with asyncio.timeout(PATIENCE):
                while True:
                    lost = await controller.does("doctor")
                    if "jobs are degraded" in lost.out and "l0,s0,0 is down since" in lost.out:
                        break
                    await asyncio.sleep(0.05)
            assert lost.code == 1
            assert "-> Run: heddle doctor job blue" in lost.out
            told = (await controller.does("doctor", "job", "blue")).out
            assert "flows without a path: " in told
            assert ".." not in told, "a reason ends where its sentence does"


async def test_the_path_of_the_slowest_flow_tells_parallel_links_apart(tmp_path: Path) -> None:
    """The path names the parallel link that is used, not only the switches at its ends."""
    fabric, jobs = tmp_path / "pod.json", tmp_path / "jobs.yaml"
    pod = clos(leaves=2, spines=1, nics_per_leaf=1, nics_per_host=1, parallel=2, name="pod")
    save_fabric_file(pod, fabric)
    jobs.write_text("- {job: red, hosts: [l0-h0, l1-h0], gpus_per_host: 1}")
    patient = ("--rollout-seconds", "3600")  # there are no agents, and nobody gives up on them
    async with controlling(tmp_path, *patient) as controller:
        for words in (
            ("fabric", "import", fabric),
            ("fabric", "link", "l0,s0,0", "down"),
            ("job", "submit", jobs),
            ("job", "watch", "--until", "planned"),
        ):
            done = await controller.does(*words)
            assert done.code == 0, done.err
        told = await controller.does("doctor", "job", "red")
        (path,) = (line for line in told.lines if line[0] == "path")
        assert {"[1]s0", "[1]l0"} & {*path}, path


async def test_certificates_that_are_about_to_end(tmp_path: Path) -> None:
    """The doctor names the files of the controller and the command, and the agents, with the time.

    Certificates with enough time left are not named.
    """
    authority = Authority(tmp_path / "pki")
    soon = 0.01  # of a day; they began an hour ago
    server = authority.issue("server", x509.DNSName("localhost"), days=soon)
    ann = authority.issue("ann", role("operator/ann"), days=soon)
    bob = authority.role("operator/bob")
    agents = [authority.issue("l0", role("agent/f1/l0"), days=soon), authority.role("agent/f1/l1")]
    terms = replace(LOOPBACK, tls=Tls(server.cert, server.key, server.ca))
    with unlogged():
        async with serving(tmp_path, terms) as s, AsyncExitStack() as stack:
            await s.put_fabric()
            address = f"localhost:{s.api.port}"
            for number, agent in enumerate(agents):
                channel = aio.secure_channel(address, agent.credentials())
                call = AgentServiceStub(await stack.enter_async_context(channel)).Session()
                about = agent_pb2.SessionParameters(
                    fabric="fabrics/f1", switch=f"l{number}", instance_id="i"
                )
                await call.write(agent_pb2.AgentMessage(session_parameters=about))
                assert await call.read() is not aio.EOF
            words = ("--server", address, "--fabric", "f1")
            hers = await asyncio.to_thread(heddle, *words, *ann.options(), "doctor", "--json")
            his = await asyncio.to_thread(heddle, *words, *bob.options(), "doctor", "--json")
    assert hers.code == his.code == 1
    told = [one["text"] for one in about_certificates(his)]
    assert len(told) == 2
    assert told[0].startswith(f"The controller's certificate {server.cert} ends at 2")
    assert told[1].startswith("1 agent needs a new certificate: l0; the first ends at 2")
    (more,) = [one["text"] for one in about_certificates(hers) if one["text"] not in told]
    assert more.startswith(f"This command's certificate {ann.cert} ends at 2")


def about_certificates(done: Outcome) -> list[Any]:
    """The findings about certificates."""
    return about(done.json, "certificates")


def role(path: str) -> x509.GeneralName:
    """The name in a certificate that gives a role."""
    return x509.UniformResourceIdentifier(f"spiffe://heddle/{path}")
