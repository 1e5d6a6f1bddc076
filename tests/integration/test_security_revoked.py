"""Revoked certificates and tokens are refused, and their open streams end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from grpc import aio

from heddle.v1 import fabric_pb2
from heddle.v1.fabric_pb2_grpc import FabricServiceStub
from heddle_controller.model.errors import InputError
from heddle_controller.serve.interceptors.auth import Admission
from heddle_controller.serve.security.caller import Caller, Role
from heddle_controller.serve.security.certificates import Tls
from heddle_controller.serve.security.files import Revoked, TokenFile, new_token
from tests.integration.certifying import Authority, Pair
from tests.support.serving import LOOPBACK, OPTIONS, reason, refusal, serving
from tests.support.waiting import PATIENCE

LIST = fabric_pb2.ListFabricsRequest()
WATCH = fabric_pb2.WatchFabricRequest(name="fabrics/f1")


def serial(pair: Pair) -> str:
    """Return the line that revokes a certificate by serial number, as openssl prints it."""
    return f"serial {certificate(pair).serial_number:X}\n"


def fingerprint(pair: Pair) -> str:
    """Return the line that revokes a certificate by fingerprint, as openssl prints it."""
    return f"sha256 {certificate(pair).fingerprint(hashes.SHA256()).hex(':').upper()}  # ann left\n"


def certificate(pair: Pair) -> x509.Certificate:
    """Return the certificate of a client."""
    return x509.load_pem_x509_certificate(pair.cert.read_bytes())


def dial(port: int, authority: Authority, pair: Pair | None) -> aio.Channel:
    """Return a client's channel, with or without a certificate."""
    plain = grpc.ssl_channel_credentials(authority.ca.read_bytes())
    made = pair.credentials() if pair else plain
    return aio.secure_channel(f"localhost:{port}", made, OPTIONS)


async def ended(stream: Any) -> aio.AioRpcError:
    """Return the error with which an open stream ends."""
    async with asyncio.timeout(PATIENCE):
        try:
            while await stream.read() is not aio.EOF:
                pass
        except aio.AioRpcError as error:
            return error
    raise AssertionError("it ended as if all were well")


@pytest.mark.parametrize("line", [serial, fingerprint])
async def test_a_certificate_that_is_taken_back(
    tmp_path: Path, line: Callable[[Pair], str]
) -> None:
    """Calls with a revoked certificate are refused and its streams end; those of others go on."""
    authority = Authority(tmp_path / "pki")
    server, file = authority.server(), tmp_path / "revoked"
    file.write_text("# nobody yet\n")
    terms = replace(
        LOOPBACK,
        tls=Tls(server.cert, server.key, server.ca),
        admission=Admission(revoked=Revoked(file)),
    )
    lost, kept = authority.role("operator/ann"), authority.role("operator/bob")
    async with (
        serving(tmp_path, terms) as s,
        dial(s.api.port, authority, lost) as one,
        dial(s.api.port, authority, kept) as other,
    ):
        await s.put_fabric()
        streams = [FabricServiceStub(channel).WatchFabric(WATCH) for channel in (one, other)]
        for stream in streams:
            assert await stream.read()
        await FabricServiceStub(one).ListFabrics(LIST)
        file.write_text(line(lost))
        error = await refusal(FabricServiceStub(one).ListFabrics(LIST))
        assert (error.code().name, reason(error)) == ("UNAUTHENTICATED", "REVOKED")
        error = await ended(streams[0])
        assert (error.code().name, reason(error)) == ("UNAUTHENTICATED", "REVOKED")
        await FabricServiceStub(other).ListFabrics(LIST)
        assert not streams[1].done()
        streams[1].cancel()


async def test_a_token_that_is_taken_back_ends_its_streams(tmp_path: Path) -> None:
    """Removing a token's line from the file ends the streams that it began, and no others."""
    authority, file = Authority(tmp_path / "pki"), tmp_path / "tokens"
    server = authority.server()
    made = [new_token(Caller(Role.READER, ""), name, time.time() + 1000) for name in ("a", "b")]
    file.write_text("".join(f"{grant.line()}\n" for _, grant in made))
    terms = replace(
        LOOPBACK, tls=Tls(server.cert, server.key), admission=Admission(tokens=TokenFile(file))
    )
    async with serving(tmp_path, terms) as s, dial(s.api.port, authority, None) as channel:
        await s.put_fabric()
        stub = FabricServiceStub(channel)
        streams = [
            stub.WatchFabric(WATCH, metadata=(("authorization", f"Bearer {token}"),))
            for token, _ in made
        ]
        for stream in streams:
            assert await stream.read()
        file.write_text(f"{made[1][1].line()}\n")
        assert reason(await ended(streams[0])) == "BAD_TOKEN"
        assert not streams[1].done()
        streams[1].cancel()


def test_a_file_that_is_spoilt_takes_nothing_back(tmp_path: Path) -> None:
    """An invalid file is refused at the start; later it revokes no less than before.

    Valid lines of a file that has become invalid count in addition. Bytes that are no certificate
    count as revoked. A file that others may write is refused.
    """
    authority, file = Authority(tmp_path / "pki"), tmp_path / "revoked"
    ann, bob, eve = (authority.role(f"operator/{name}") for name in ("ann", "bob", "eve"))
    pems = [pair.cert.read_bytes() for pair in (ann, bob, eve)]
    file.write_text(f"{serial(ann)}serial nonsense\n")
    with pytest.raises(InputError, match="line 2"):
        Revoked(file)
    file.write_text(serial(ann))
    revoked = Revoked(file)
    assert [revoked.names(pem) for pem in pems] == [True, False, False]
    file.write_text(f"nonsense\n{fingerprint(bob)}")
    assert [revoked.names(pem) for pem in pems] == [True, True, False]
    file.unlink()
    assert [revoked.names(pem) for pem in pems] == [True, True, False]
    file.write_text(serial(eve))
    assert [revoked.names(pem) for pem in pems] == [False, False, True]
    assert revoked.names(b"no certificate")
    file.chmod(0o666)
    with pytest.raises(InputError, match="chmod"):
        Revoked(file)
