"""``heddle`` and TLS: certificates of operators, files that are wrong, and tokens."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from cryptography import x509

from heddle_controller.serve.interceptors.auth import Admission
from heddle_controller.serve.security.certificates import Tls
from heddle_controller.serve.security.files import TokenFile
from tests.integration.certifying import Authority
from tests.support.operating import heddle, unlogged
from tests.support.serving import LOOPBACK, serving


async def test_an_operator_shows_a_certificate(tmp_path: Path) -> None:
    """A certificate of the right authority is accepted; other calls fail and say what to give."""
    authority = Authority(tmp_path / "pki")
    server, ann = authority.server(), authority.role("operator/ann")
    with unlogged():
        terms = replace(LOOPBACK, tls=Tls(server.cert, server.key, server.ca))
        async with serving(tmp_path, terms) as s:
            words = ("--server", f"localhost:{s.api.port}")
            known = await asyncio.to_thread(heddle, *words, *ann.options(), "fabric", "list")
            stranger = await asyncio.to_thread(
                heddle, *words, "--tls-ca", authority.ca, "fabric", "list"
            )
            plain = await asyncio.to_thread(heddle, *words, "fabric", "list")
            other = Authority(tmp_path / "other").role("operator/ann")
            doubted = await asyncio.to_thread(
                heddle, *words, "--tls-ca", other.ca, *ann.options()[2:], "fabric", "list"
            )
            unknown = await asyncio.to_thread(
                heddle, *words, "--tls-ca", authority.ca, *other.options()[2:], "fabric", "list"
            )
    assert known.code == 0, known.err
    for refused, cure in (
        (stranger, "give --tls-cert and --tls-key"),
        (plain, "give --tls-ca"),
        (doubted, "authority of its certificate as --tls-ca"),
        (unknown, "is it still valid, and of an authority it knows?"),
    ):
        assert refused.code == 2
        (line,) = refused.err.splitlines()
        assert line.startswith(f"error: cannot reach the controller at {words[1]}")
        assert cure in line
        assert "heddle-controller serve" not in line


async def test_a_controller_whose_certificate_has_ended(tmp_path: Path) -> None:
    """The error asks for a new certificate of the controller, not for another authority."""
    authority = Authority(tmp_path / "pki")
    ann = authority.role("operator/ann")
    server = authority.issue("server", x509.DNSName("localhost"), days=-1)
    with unlogged():
        async with serving(tmp_path, replace(LOOPBACK, tls=Tls(server.cert, server.key))) as s:
            words = ("--server", f"localhost:{s.api.port}", *ann.options(), "fabric", "list")
            refused = await asyncio.to_thread(heddle, *words)
    assert refused.code == 2
    (line,) = refused.err.splitlines()
    assert "certificate has expired" in line
    assert line.endswith(": renew the controller's certificate, or correct a clock")


async def test_a_certificate_on_the_port_for_tokens(tmp_path: Path) -> None:
    """That port asks for no certificate, and the error says so."""
    authority = Authority(tmp_path / "pki")
    server, ann = authority.server(), authority.role("operator/ann")
    (tmp_path / "tokens").touch()
    terms = replace(
        LOOPBACK,
        tls=Tls(server.cert, server.key, server.ca),
        admission=Admission(tokens=TokenFile(tmp_path / "tokens")),
        token_address=("127.0.0.1", 0),
    )
    with unlogged():
        async with serving(tmp_path, terms) as s:
            words = ("--server", f"localhost:{s.api.token_port}", *ann.options(), "fabric", "list")
            refused = await asyncio.to_thread(heddle, *words)
    assert refused.code == 2
    assert "the port for tokens asks for no certificate" in refused.err


async def test_a_port_without_tls(tmp_path: Path) -> None:
    """A client that speaks TLS to a port without it gets an error that says so."""
    ann = Authority(tmp_path / "pki").role("operator/ann")
    with unlogged():
        async with serving(tmp_path) as s:
            words = ("--server", f"localhost:{s.api.port}", *ann.options(), "fabric", "list")
            refused = await asyncio.to_thread(heddle, *words)
    assert refused.code == 2
    assert "it speaks no TLS there" in refused.err


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    """One line names the file and what is wrong with it, before any connection is made."""
    authority = Authority(tmp_path / "pki")
    ann, bob = authority.role("operator/ann"), authority.role("operator/bob")
    rubbish, gone = tmp_path / "rubbish", tmp_path / "gone"
    rubbish.write_text("no certificate")
    for words, texts in (
        (("--tls-ca", rubbish), (str(rubbish), "give a PEM file")),
        (("--tls-ca", gone), (str(gone), "No such file")),
        (("--tls-ca", ann.ca, "--tls-cert", ann.cert), ("belong together",)),
        (("--tls-cert", ann.cert, "--tls-key", bob.key), (str(bob.key), "belong together")),
        (("--tls-cert", ann.cert, "--tls-key", gone), (str(gone), "No such file")),
    ):
        done = heddle("--server", "127.0.0.1:1", *words, "fabric", "list")
        assert done.code == 2
        (line,) = done.err.splitlines()
        assert all(text in line for text in texts), line


def test_a_token_stays_here(tmp_path: Path) -> None:
    """A token is sent in plain text over loopback only, never to another host."""
    token = tmp_path / "token"
    token.write_text("heddle.slurm.secret")
    words = ("--token-file", token, "--timeout", "5", "job", "list")
    there = heddle("--server", "192.0.2.1:7403", *words)
    assert there.code == 2
    assert "is not sent to 192.0.2.1 in plain text: give --tls-ca" in there.err
    here = heddle("--server", "127.0.0.1:1", *words)
    assert "cannot reach the controller" in here.err
    for done in (there, here):
        assert "secret" not in done.err
