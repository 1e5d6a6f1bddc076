"""The real agent over mutual TLS: its switch's certificate, and a new one without a restart."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from heddle_agent.agent import Agent
from heddle_agent.fib import MemoryFib, NextHop
from heddle_agent.session import Backoff, Channels, SessionOptions
from heddle_agent.session import Tls as AgentTls
from heddle_agent.watch import ManualLinks
from heddle_controller.serve.security.certificates import Tls
from tests.integration.certifying import Authority
from tests.support.serving import LOOPBACK, serving
from tests.support.waiting import until

HOPS = [NextHop("s0", "0"), NextHop("s1", "0")]


def agent(switch: str, port: int, channels: Channels) -> Agent:
    """Return an agent with its table in memory."""
    return Agent(
        fabric="fabrics/f1",
        switch=switch,
        controllers=[f"localhost:{port}"],
        fib=MemoryFib(switch, HOPS),
        links=ManualLinks(switch, HOPS),
        channels=channels,
        options=SessionOptions(backoff=Backoff(first=0.02, longest=0.1)),
    )


async def test_certificates_of_agents(tmp_path: Path) -> None:
    """An agent with another switch's certificate is refused, and connects once it gets its own."""
    authority = Authority(tmp_path / "pki")
    server = authority.server()
    terms = replace(LOOPBACK, tls=Tls(server.cert, server.key, server.ca))
    wrong, right = authority.role("agent/f1/l1"), authority.role("agent/f1/l0")
    live = tmp_path / "live"
    live.mkdir()
    cert, key = live / "cert.pem", live / "key.pem"
    cert.write_bytes(wrong.cert.read_bytes())
    key.write_bytes(wrong.key.read_bytes())
    async with serving(tmp_path, terms) as s:
        await s.put_fabric()
        channels = Channels(AgentTls(authority.ca, cert, key))
        one = agent("l0", s.api.port, channels)
        running = asyncio.create_task(one.run())
        denied = {
            "service": "heddle.v1.AgentService",
            "method": "Session",
            "code": "PERMISSION_DENIED",
        }
        await until(lambda: s.telemetry.registry.get_sample_value("heddle_rpcs_total", denied) or 0)
        assert not one.connected
        cert.write_bytes(right.cert.read_bytes())  # for a moment it does not match the key
        key.write_bytes(right.key.read_bytes())
        await until(lambda: one.connected)
        await one.stop()
        with suppress(asyncio.CancelledError):
            await running
        await channels.close()
