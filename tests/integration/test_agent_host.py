"""``heddle-agent host`` against a real API: its files say exactly what the plan says."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from structlog.testing import capture_logs

from heddle_agent.host import HostAgent, PortsFolder, Probing, Wanted
from heddle_agent.metrics import host_registry
from heddle_agent.session import Backoff, Channels, Tls
from heddle_controller.serve.security.certificates import Tls as ServerTls
from tests.integration.certifying import Authority
from tests.support.job_flows import commit, flows_of
from tests.support.serving import LOOPBACK, serving
from tests.support.waiting import PATIENCE, until

AGENT = str(Path(sys.executable).with_name("heddle-agent"))


@asynccontextmanager
async def watching(
    folder: Path, *ports: int, wanted: Wanted | None = None, tls: Tls | None = None
) -> AsyncIterator[HostAgent]:
    """Run the agent of host h0.0 in this process."""
    wanted = wanted or Wanted("fabrics/f1", "h0.0")
    channels = Channels(tls)
    agent = HostAgent(
        wanted,
        PortsFolder(folder, wanted.fabric, wanted.host),
        controllers=[f"localhost:{port}" for port in ports],
        channels=channels,
        backoff=Backoff(first=0.02, longest=0.1),
        probing=Probing(),
    )
    running = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await channels.close()


def names(folder: Path) -> set[str]:
    """Return the names of the files in a folder."""
    return {path.name for path in folder.iterdir()}


def files(job: str) -> set[str]:
    """Return the names of a job's files."""
    return {f"{job}.{end}" for end in ("json", "ports", "env")}


def read(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text())


@pytest.fixture
def strict_umask() -> Iterator[None]:
    """A umask by which only the owner may read."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("strict_umask")
async def test_files_follow_the_plan(tmp_path: Path) -> None:
    """Each job of the host has three files, which change with the plan and go with the job.

    Everybody may read them, whatever the umask.
    """
    folder = tmp_path / "run" / "ports"
    async with serving(tmp_path / "store") as s:
        await s.put_fabric()
        await commit(s, flows_of({"red": 2, "a/b": 1}))
        async with watching(folder, s.api.port):
            both = {*files("red"), *files("a%2Fb")}
            await until(lambda: folder.exists() and names(folder) == both)
            red = read(folder / "red.json")
            assert (red["fabric"], red["host"], red["job"]) == ("fabrics/f1", "h0.0", "red")
            assert [flow["ports"] for flow in red["flows"]] == [[*range(49152, 49156)]] * 2
            assert [flow["destination"] for flow in red["flows"]] == ["n1.0", "n1.1"]
            told = {f["destination_address"]: f["source_address"] for f in red["flows"]}
            lines = [f"{told[to]} {to} 49152 49153 49154 49155" for to in told]
            assert (folder / "red.ports").read_text().splitlines() == lines
            assert (folder / "red.json").stat().st_mode & 0o777 == 0o644
            assert {at.stat().st_mode & 0o777 for at in (folder, folder.parent)} == {0o755}
            await commit(s, flows_of({"red": 2}, qps=2))
            await until(lambda: names(folder) == files("red"))
            await until(lambda: read(folder / "red.json")["flows"][0]["ports"] == [49152, 49153])
            await commit(s, flows_of({}))
            await until(lambda: not names(folder))


async def test_what_it_does_is_counted(tmp_path: Path) -> None:
    """Metrics count jobs, ports, changed files and failed writes, and show the connection."""
    folder = tmp_path / "ports"
    async with serving(tmp_path / "store") as s:
        await s.put_fabric()
        await commit(s, flows_of({"red": 2, "blue": 1}, qps=3))
        async with watching(folder, s.api.port) as agent:
            told = agent.figures
            await until(lambda: told.connected)
            assert (told.jobs, told.ports, told.writes, told.write_failures) == (2, 9, 2, 0)
            assert abs(told.last_write - time.time()) < PATIENCE
            await commit(s, flows_of({"red": 1}, qps=3))
            await until(lambda: (told.jobs, told.ports, told.writes) == (1, 3, 4))
            for path in folder.iterdir():
                path.unlink()
            folder.rmdir()
            await commit(s, flows_of({"red": 1}, qps=2))
            await until(lambda: told.write_failures > 0 and not told.connected)
            folder.mkdir()
            await until(lambda: told.connected and told.ports == 2)
            await until(lambda: names(folder) == files("red"))
            served = generate_latest(host_registry("h0.0", told)).decode()
            assert 'heddle_host_ports{host="h0.0"} 2.0' in served
            assert 'heddle_host_writes_total{host="h0.0",outcome="done"} 5.0' in served
        assert not told.connected


async def test_variables_are_written_where_one_list_says_all(tmp_path: Path) -> None:
    """The variables of other programs are set only where one list of ports fits all connections.

    Where flows of a pair have different ports, only Heddle's own variables are set.
    """
    async with serving(tmp_path / "store") as s:
        await s.put_fabric()
        await commit(s, flows_of({"red": 2}, qps=2))
        async with watching(tmp_path / "ports", s.api.port):
            path = tmp_path / "ports" / "red.env"
            await until(path.exists)
            lines = path.read_text().splitlines()
            assert f"HEDDLE_PORTS_FILE={tmp_path}/ports/red.json" in lines
            assert "MC_MLX5_QP_UDP_SPORTS=49152,49153" in lines
            assert "MORI_MLX5_ENABLE_UDP_SPORT=1" in lines
            assert "MORI_GOR_PORT=49152,49153,49152,49153" in lines
            await commit(s, flows_of({"red": 2}, qps=3))
            await until(lambda: "PORTS=49152,49153,49154\n" in path.read_text().replace("SP", "P"))
            assert "MORI_GOR_PORT=" not in path.read_text()
            await commit(s, flows_of({"red": 4}))  # two flows of one pair
            await until(lambda: "MC_MLX5_QP_UDP_SPORTS=" not in path.read_text())
            set_ = [line for line in path.read_text().splitlines() if not line.startswith("#")]
            assert set_ == [
                f"HEDDLE_PORTS_FILE={tmp_path}/ports/red.json",
                f"HEDDLE_PRELOAD_PORTS={tmp_path}/ports/red.ports",
            ]


async def test_files_outlive_controllers_and_restarts(tmp_path: Path) -> None:
    """Files stay while no controller answers; those of ended jobs go with the next answer.

    Files of others in the same folder are never touched.
    """
    folder = tmp_path / "ports"
    foreign = {"notes.json": "[]", "other.json": '{"fabric":"fabrics/f1","host":"x","job":"other"}'}
    folder.mkdir()
    for name, text in foreign.items():
        (folder / name).write_text(text)
    ours = {*files("red"), *files("blue")}
    async with serving(tmp_path / "store") as s:
        await s.put_fabric()
        await commit(s, flows_of({"red": 1, "blue": 1}))
        async with watching(folder, s.api.port):
            await until(lambda: names(folder) == ours | foreign.keys())
        await commit(s, flows_of({"blue": 1}))
        gone = s.api.port
    with capture_logs() as logged:
        async with watching(folder, gone):
            await until(lambda: any(line["event"].startswith("ports not") for line in logged))
            assert names(folder) == ours | foreign.keys()
    async with serving(tmp_path / "store") as again, watching(folder, gone, again.api.port):
        await until(lambda: names(folder) == files("blue") | foreign.keys())
    assert {name: (folder / name).read_text() for name in foreign} == foreign


async def test_a_host_reads_its_own_ports_alone(tmp_path: Path) -> None:
    """A host's certificate opens its own ports, not another host's, nor ports by NIC names.

    A reader's certificate may ask by NIC names.
    """
    authority = Authority(tmp_path / "pki")
    server, own = authority.server(), authority.role("host/f1/h0.0")
    terms = replace(LOOPBACK, tls=ServerTls(server.cert, server.key, server.ca))
    async with serving(tmp_path / "store", terms) as s:
        await s.put_fabric()
        await commit(s, flows_of({"red": 4}))
        tls = Tls(own.ca, own.cert, own.key)

        def refused() -> float:
            labels = {
                "service": "heddle.v1.PlanService",
                "method": "WatchJobPorts",
                "code": "PERMISSION_DENIED",
            }
            return s.telemetry.registry.get_sample_value("heddle_rpcs_total", labels) or 0.0

        def more(before: float) -> bool:
            return refused() > before

        for at, wanted in enumerate(
            (Wanted("fabrics/f1", "h0.1"), Wanted("fabrics/f1", "h0.0", ["n0.1"]))
        ):
            before = refused()
            async with watching(tmp_path / f"no{at}", s.api.port, wanted=wanted, tls=tls):
                await until(partial(more, before))
            assert not names(tmp_path / f"no{at}")
        async with watching(tmp_path / "yes", s.api.port, tls=tls):
            await until(lambda: names(tmp_path / "yes") == files("red"))
        reader = authority.role("reader/ann")
        tls = Tls(reader.ca, reader.cert, reader.key)
        wanted = Wanted("fabrics/f1", "somebody", ["n0.1"])
        async with watching(tmp_path / "nics", s.api.port, wanted=wanted, tls=tls):
            await until(lambda: names(tmp_path / "nics") == files("red"))


async def test_the_command_runs_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """Settings come from flags and variables; SIGTERM ends the command with 0, and files stay."""
    async with serving(tmp_path / "store") as s:
        await s.put_fabric()
        await commit(s, flows_of({"red": 1}))
        command = [AGENT, "host", "--fabric=fabrics/f1", f"--directory={tmp_path}/ports"]
        process = await asyncio.create_subprocess_exec(
            *command,
            f"--controller=127.0.0.1:{s.api.port}",
            env={"HEDDLE_HOST_HOST": "h0.0"},
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            await until((tmp_path / "ports" / "red.env").exists)
            process.send_signal(signal.SIGTERM)
            _, said = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0, said.decode()
        assert names(tmp_path / "ports") == files("red")


async def test_it_stops_whatever_just_ends(tmp_path: Path) -> None:
    """A cancelled agent ends at each of 120 moments, whether controllers refuse or answer it."""
    async with serving(tmp_path / "store") as s:
        await s.put_fabric()

        async def goes_on(moment: int) -> bool:
            wanted = Wanted(("fabrics/none", "fabrics/f1")[moment % 2], "h0.0")
            channels = Channels(None)
            agent = HostAgent(
                wanted,
                PortsFolder(tmp_path / str(moment), wanted.fabric, wanted.host),
                controllers=[f"localhost:{s.api.port}"],
                channels=channels,
                backoff=Backoff(first=0.0, longest=0.0),
                probing=Probing(),
            )
            running = asyncio.create_task(agent.run())
            await asyncio.sleep(moment / 1000)
            running.cancel()
            await asyncio.wait([running], timeout=PATIENCE)
            await channels.close()
            return not running.done()

        assert not any(await asyncio.gather(*map(goes_on, range(120))))


def test_a_program_in_any_folder_finds_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables have the whole paths of files, also where ``--directory`` is a relative one."""
    monkeypatch.chdir(tmp_path)
    PortsFolder(Path("ports"), "fabrics/f1", "h0").write({"job": "j1", "flows": []})
    lines = (tmp_path / "ports" / "j1.env").read_text().splitlines()
    assert f"HEDDLE_PORTS_FILE={tmp_path}/ports/j1.json" in lines
    assert f"HEDDLE_PRELOAD_PORTS={tmp_path}/ports/j1.ports" in lines


async def test_bad_settings_end_it_with_a_line_each(tmp_path: Path) -> None:
    """The command exits with 2 and says what is wrong: the flag and its variable, or the folder."""
    (tmp_path / "file").touch()
    here, there = f"--directory={tmp_path}/ports", f"--directory={tmp_path}/file/ports"
    known = ("--fabric=fabrics/f1", "--controller=127.0.0.1:1")
    for options, said in (
        ((here,), "--fabric is missing: give it, or set HEDDLE_HOST_FABRIC"),
        ((here, "--fabric=fabrics/f1"), "--controller is missing"),
        ((here, "--fabric=fabrics/f1", "--controller=c:1"), "say --insecure"),
        ((*known, "--directory=ports"), "give an absolute path"),
        ((*known, there), "cannot be written to"),
    ):
        process = await asyncio.create_subprocess_exec(
            AGENT, "host", *options, stderr=asyncio.subprocess.PIPE
        )
        _, told = await process.communicate()
        assert (process.returncode, said in told.decode()) == (2, True), told.decode()
