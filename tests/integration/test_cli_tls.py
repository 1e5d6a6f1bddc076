from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import structlog
import trustme

from heddle_controller.serve.server import Tls
from tests.integration.operating import heddle
from tests.integration.serving import LOOPBACK, serving


async def test_an_operator_shows_a_certificate(tmp_path: Path) -> None:
    """With --ca, --cert and --key the command gets in; without a certificate it does not."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    client = authority.issue_cert("operator@example.org")
    cert, key, ca = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    mine, mine_key = tmp_path / "mine.pem", tmp_path / "mine-key.pem"
    issued.cert_chain_pems[0].write_to_path(str(cert))
    issued.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(ca))
    client.cert_chain_pems[0].write_to_path(str(mine))
    client.private_key_pem.write_to_path(str(mine_key))
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    async with serving(tmp_path, replace(LOOPBACK, tls=Tls(cert, key, ca))) as s:
        words = ("--server", f"localhost:{s.api.port}", "--ca", ca)
        known = await asyncio.to_thread(
            heddle, *words, "--cert", mine, "--key", mine_key, "fabric", "list"
        )
        stranger = await asyncio.to_thread(heddle, *words, "fabric", "list")
        plain = await asyncio.to_thread(heddle, *words[:2], "fabric", "list")
    structlog.reset_defaults()
    assert known.code == 0, known.err
    for refused in (stranger, plain):
        assert refused.code == 2
        assert refused.err.startswith(f"error: cannot reach the controller at {words[1]}")
