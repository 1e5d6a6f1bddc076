from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from heddle_controller.serve.security.certificates import Tls
from heddle_controller.serve.server import ApiServer, ServerTerms
from heddle_controller.telemetry.metrics import Telemetry
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE
from tests.unit.deploy.certificates import authority, signed

IMAGES = Path(__file__).resolve().parents[3] / "deploy" / "images"
LATE = re.compile("timed out|DEADLINE_EXCEEDED")
"""What a health check says that got no answer in time."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The exit status of a health check, and what it printed."""

    code: int | None
    said: str


async def check(program: str, **variables: str) -> Verdict:
    """Return the verdict of a health check; a busy machine may need several for one in time."""
    async with asyncio.timeout(PATIENCE):
        while LATE.search((verdict := await checked(program, **variables)).said):
            pass
    return verdict


async def checked(program: str, **variables: str) -> Verdict:
    """Run a health check with these HEDDLE variables and no others."""
    others = {key: value for key, value in os.environ.items() if not key.startswith("HEDDLE_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, IMAGES / program),
        env=others | variables,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    return Verdict(process.returncode, said.decode())


@contextlib.asynccontextmanager
async def serving(tls: Tls | None = None, *, ready: bool = True) -> AsyncIterator[str]:
    """Run the controller's server with the health service alone, and yield its port."""
    server = ApiServer([], ServerTerms("127.0.0.1", 0, tls=tls), Telemetry())
    await server.start()
    server.set_serving(serving=ready)
    try:
        yield str(server.port)
    finally:
        await server.stop(0)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])
async def test_a_controller_that_serves_is_healthy(host: str) -> None:
    """SERVING gives exit status 0 and no output, at any address that it was told to listen on."""
    async with serving() as port:
        verdict = await check("controller_health.py", HEDDLE_LISTEN=f"{host}:{port}")
    assert verdict == Verdict(0, "")


async def test_a_controller_that_drains_is_not_healthy() -> None:
    """NOT_SERVING gives exit status 1 and is printed."""
    async with serving(ready=False) as port:
        verdict = await check("controller_health.py", HEDDLE_LISTEN=f"127.0.0.1:{port}")
    assert verdict == Verdict(1, "not healthy: NOT_SERVING\n")


async def test_a_controller_that_is_gone_is_not_healthy() -> None:
    """If nobody listens, the exit status is 1 and one line is printed."""
    verdict = await check("controller_health.py", HEDDLE_LISTEN=f"127.0.0.1:{free_port()}")
    assert verdict.code == 1
    assert re.fullmatch(r"not healthy: UNAVAILABLE: .*\n", verdict.said)


@pytest.mark.parametrize("mutual", ["server", "both"])
async def test_a_controller_with_tls_is_known_by_its_own_certificate(
    mutual: str, tmp_path: Path
) -> None:
    """The check needs no authority and no name.

    Where clients need a certificate, it shows its own.
    """
    ca = authority(tmp_path, "ca")
    own = signed(tmp_path, ca, "controller.example.net")
    client_ca = ca.cert if mutual == "both" else None
    variables = {"HEDDLE_TLS_CERT": str(own.cert), "HEDDLE_TLS_KEY": str(own.key)}
    if client_ca:
        variables["HEDDLE_TLS_CLIENT_CA"] = str(client_ca)
    async with serving(Tls(own.cert, own.key, client_ca)) as port:
        verdict = await check(
            "controller_health.py", HEDDLE_LISTEN=f"127.0.0.1:{port}", **variables
        )
    assert verdict == Verdict(0, "")


async def test_somebody_else_with_tls_is_not_the_controller(tmp_path: Path) -> None:
    """Another certificate of the same authority is not accepted as the controller's."""
    ca = authority(tmp_path, "ca")
    own, other = (signed(tmp_path, ca, f"{name}.example.net") for name in ("own", "other"))
    async with serving(Tls(other.cert, other.key)) as port:
        verdict = await check(
            "controller_health.py",
            HEDDLE_LISTEN=f"127.0.0.1:{port}",
            HEDDLE_TLS_CERT=str(own.cert),
        )
    assert verdict.code == 1
    assert re.fullmatch(r"not healthy: .*certificate verify failed.*\n", verdict.said)


@contextlib.asynccontextmanager
async def agent() -> AsyncIterator[str]:
    """Run an agent without any controller, and yield the port of its metrics."""
    process = await asyncio.create_subprocess_exec(
        *(Path(sys.executable).with_name("heddle-agent"), "run", "--fabric=fabrics/f1"),
        *("--switch=leaf0", "--link=spine0", f"--controller=127.0.0.1:{free_port()}"),
        *("--metrics-port=0", "--log-format=json"),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async for line in process.stderr:
            if b"metrics served" in line:
                break
        found = re.search(rb'"port": (\d+)', line)
        assert found
        yield found[1].decode()
    finally:
        process.terminate()
        await process.communicate()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_an_agent_without_a_controller_is_healthy(host: str) -> None:
    """An agent without a controller serves its metrics and keeps its entries.

    So it must not be restarted.
    """
    async with agent() as port:
        verdict = await check(
            "agent_health.py", HEDDLE_AGENT_METRICS_PORT=port, HEDDLE_AGENT_METRICS_HOST=host
        )
    assert verdict == Verdict(0, "")


async def test_an_agent_that_is_gone_is_not_healthy() -> None:
    """If nobody listens, the exit status is 1 and one line is printed."""
    verdict = await check("agent_health.py", HEDDLE_AGENT_METRICS_PORT=str(free_port()))
    assert verdict.code == 1
    assert re.fullmatch(r"not healthy: .*Connection refused.*\n", verdict.said)


async def test_an_agent_without_metrics_cannot_be_asked() -> None:
    """The output names the missing variable."""
    verdict = await check("agent_health.py")
    assert verdict.code == 1
    assert verdict.said.startswith("not known: HEDDLE_AGENT_METRICS_PORT is not set")
