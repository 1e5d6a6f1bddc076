from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import structlog

from heddle_controller.serve.security.keys import Tls
from tests.integration.certifying import Authority
from tests.integration.operating import heddle
from tests.integration.serving import LOOPBACK, serving


async def test_an_operator_shows_a_certificate(tmp_path: Path) -> None:
    """With --tls-ca, --tls-cert and --tls-key the command gets in; without a certificate not."""
    authority = Authority(tmp_path / "pki")
    server, ann = authority.server(), authority.role("operator/ann")
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    terms = replace(LOOPBACK, tls=Tls(server.cert, server.key, server.ca))
    async with serving(tmp_path, terms) as s:
        words = ("--server", f"localhost:{s.api.port}")
        known = await asyncio.to_thread(heddle, *words, *ann.options(), "fabric", "list")
        stranger = await asyncio.to_thread(
            heddle, *words, "--tls-ca", authority.ca, "fabric", "list"
        )
        plain = await asyncio.to_thread(heddle, *words, "fabric", "list")
    structlog.reset_defaults()
    assert known.code == 0, known.err
    for refused in (stranger, plain):
        assert refused.code == 2
        assert refused.err.startswith(f"error: cannot reach the controller at {words[1]}")
