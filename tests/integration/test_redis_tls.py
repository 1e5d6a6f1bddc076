"""Redis over TLS, with certificates on both sides and a password."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle_controller.state.errors import Unavailable, Unusable
from heddle_controller.store.redis.address import Files
from tests.support.needs import missing
from tests.support.ports import free_port
from tests.support.redis_server import NEVER, RedisServer, opened
from tests.support.store_samples import clos

PASSWORD = "correct-horse"


def certificate(folder: Path, name: str, signer: str = "") -> None:
    """Write a key and a certificate for 127.0.0.1, signed by itself or by ``signer``."""
    program = shutil.which("openssl")
    if program is None:
        missing("openssl: apt-get install openssl")
    by = ["-CA", str(folder / f"{signer}.pem"), "-CAkey", str(folder / f"{signer}.key")]
    command = [
        *(program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
        *("-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"),
        *("-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")),
        *(by if signer else []),
    ]
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with certificates of one authority, and those of another authority."""
    made = tmp_path_factory.mktemp("tls")
    certificate(made, "ca")
    certificate(made, "server", "ca")
    certificate(made, "client", "ca")
    certificate(made, "stranger")
    return made


@pytest.fixture(scope="module")
def port(folder: Path) -> Iterator[int]:
    """The port of a server that requires a certificate and a password."""
    number = free_port()
    options = (
        *(*NEVER, "--tls-port", str(number), "--requirepass", PASSWORD),
        *("--tls-cert-file", str(folder / "server.pem")),
        *("--tls-key-file", str(folder / "server.key")),
        *("--tls-ca-cert-file", str(folder / "ca.pem")),
    )
    with RedisServer(folder / "redis", *options):
        yield number


def files(folder: Path, ca: str = "ca", name: str = "client") -> Files:
    """Return the files of the authority that a controller trusts and the certificate it shows."""
    if not name:
        return Files(folder / f"{ca}.pem")
    return Files(folder / f"{ca}.pem", folder / f"{name}.pem", folder / f"{name}.key")


async def test_over_tls(folder: Path, port: int) -> None:
    """With the right authority, certificate and password the store works."""
    url = f"rediss://:{PASSWORD}@127.0.0.1:{port}"
    store = await opened(url, files=files(folder))
    await store.put_fabric("f1", clos())
    assert (await store.get_fabric("f1")).name == "f1"
    assert PASSWORD not in store.link.name
    await store.close()


@pytest.mark.parametrize(
    ("ca", "name", "password", "cure"),
    [
        ("stranger", "client", PASSWORD, "--store-ca"),
        ("ca", "", PASSWORD, "--store-cert"),
        ("ca", "stranger", PASSWORD, "--store-cert"),
        ("ca", "client", "battery-staple", "password"),
    ],
)
async def test_strangers(
    folder: Path, port: int, *, ca: str, name: str, password: str, cure: str
) -> None:
    """A refused connection names the address and the option to change, but no secret.

    The error does not suggest to start the server.
    """
    url = f"rediss://:{password}@127.0.0.1:{port}"
    with pytest.raises(Unavailable) as refused:
        await opened(url, files=files(folder, ca, name))
    assert f"rediss://127.0.0.1:{port}" in str(refused.value)
    assert password not in str(refused.value)
    assert cure in str(refused.value)
    assert "Start it" not in str(refused.value)


@pytest.mark.parametrize("abrupt", [False, True])
async def test_a_server_that_hangs_up(folder: Path, *, abrupt: bool) -> None:
    """If a server closes the connection after the handshake, the error asks for a certificate."""

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if abrupt:
            writer.transport.abort()
        else:
            writer.close()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    number = free_port()
    async with await asyncio.start_server(hang_up, "127.0.0.1", number, ssl=context):
        with pytest.raises(Unavailable) as refused:
            await opened(f"rediss://127.0.0.1:{number}", files=files(folder))
    assert "--store-cert" in str(refused.value)
    assert "Start it" not in str(refused.value)


async def test_a_file_that_is_not_there(folder: Path, port: int) -> None:
    """The error for a missing file names the file and the option."""
    with pytest.raises(Unusable) as refused:
        await opened(f"rediss://127.0.0.1:{port}", files=Files(folder / "gone.pem"))
    assert f"--store-ca {folder / 'gone.pem'}: No such file" in str(refused.value)


async def test_no_sentinel_answers() -> None:
    """If no sentinel answers, the error names the sentinels and the master in one line."""
    port = free_port()
    with pytest.raises(Unavailable) as refused:
        await opened(f"redis+sentinel://127.0.0.1:{port}/heddle")
    text = str(refused.value)
    assert f"no master 'heddle' by the sentinels 127.0.0.1:{port}" in text
    assert "<redis" not in text
    assert text.endswith("Start it, or name another with --store")


@pytest.mark.parametrize(
    "url",
    [
        "http://x",
        "redis://",
        "redis+sentinel://h",
        "redis+cluster://",
        "redis+x://h",
        "redis://h/x",
    ],
)
async def test_no_address(url: str) -> None:
    """An invalid address is refused, and the error shows valid forms."""
    with pytest.raises(Unusable, match="use redis://host:6379"):
        await opened(url)


async def test_a_cluster_has_one_database() -> None:
    """A database number is refused for a cluster before connecting, with the cure ``name``."""
    with pytest.raises(Unusable, match=r"\?name="):
        await opened("redis+cluster://127.0.0.1:1/1")
