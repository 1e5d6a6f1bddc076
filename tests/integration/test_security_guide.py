"""SECURITY.md is true: its commands work, and the tests and options that it names exist."""

from __future__ import annotations

import asyncio
import datetime as dt
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from heddle_agent import cli as agent_cli
from heddle_controller.app import main as controller_main
from heddle_controller.cli.main import main as heddle_main
from heddle_controller.serve.security.certificates import Tls, read_rules
from heddle_controller.serve.security.files import Revoked
from tests.support.needs import missing
from tests.support.operating import heddle, unlogged
from tests.support.serving import LOOPBACK, serving

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "SECURITY.md").read_text()


def block(after: str, kind: str = "") -> str:
    """Return the first fenced block after some words of the guide."""
    rest = GUIDE[GUIDE.index(after) :]
    found = re.search(rf"```{kind}\n(.*?)```", rest, re.DOTALL)
    assert found, after
    return found[1]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the guide's commands for certificates were run."""
    if shutil.which("openssl") is None:
        missing("no openssl: apt-get install openssl")
    folder = tmp_path_factory.mktemp("pki")
    commands = block("## Certificates", "sh")
    done = subprocess.run(
        ["sh", "-c", commands], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


async def test_certificates_by_the_guide(made: Path, tmp_path: Path) -> None:
    """The guide's operator may change a link, its scheduler may only read, its switch neither."""
    tls = Tls(made / "controller.crt", made / "controller.key", made / "ca.crt")
    with unlogged():
        async with serving(tmp_path, replace(LOOPBACK, tls=tls)) as s:
            await s.put_fabric()
            words = ("--server", f"localhost:{s.api.port}", "--tls-ca", made / "ca.crt")

            async def does(name: str, *command: str) -> int:
                files = ("--tls-cert", made / f"{name}.crt", "--tls-key", made / f"{name}.key")
                return (await asyncio.to_thread(heddle, *words, *files, *command)).code

            down = ("fabric", "link", "l0,s0", "down")
            assert [await does(name, *down) for name in ("ann", "slurm", "leaf0")] == [0, 2, 2]
            assert [await does(name, "fabric", "list") for name in ("slurm", "leaf0")] == [0, 2]
            assert await does("ann", "audit", "verify") == 0


def test_certificates_hold_for_strict_clients(made: Path) -> None:
    """The guide's certificates obey RFC 5280, as Python demands by default from 3.13 on."""
    verify = ("openssl", "verify", "-x509_strict", "-CAfile", "ca.crt", "controller.crt", "ann.crt")
    done = subprocess.run(verify, cwd=made, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_keys_are_their_owners_alone(made: Path) -> None:
    """The guide's commands make keys that only their owners can read."""
    assert {path.stat().st_mode & 0o077 for path in made.glob("*.key")} == {0}


def test_roles_by_the_guide(tmp_path: Path) -> None:
    """The guide's example of a roles file is valid."""
    path = tmp_path / "roles"
    path.write_text(block("If your certificates have no such URI"))
    assert [str(rule.caller.role) for rule in read_rules(path)] == [
        "scheduler",
        "operator",
        "agent",
    ]


COMMANDS: tuple[tuple[click.Command, tuple[str, ...]], ...] = (
    (heddle_main, ()),
    (heddle_main, ("token", "new")),
    (heddle_main, ("audit", "verify")),
    (heddle_main, ("audit", "export")),
    (controller_main, ("serve",)),
    (agent_cli.cli, ("run",)),
)


def help_of(program: click.Command, *words: str) -> str:
    """Return the help of a command."""
    return CliRunner().invoke(program, [*words, "--help"]).stdout


def test_what_it_points_at_is_there() -> None:
    """Every test that the guide names exists, and every option of the programs."""
    tests = set(re.findall(r"`((?:\w+/)?(?:test_)?\w+\.py)`", GUIDE))
    assert len(tests) > 10
    for name in tests:
        assert list((ROOT / "tests").rglob(name)), name
    helped = "".join(help_of(program, *words) for program, words in COMMANDS)
    told = set(re.findall(r"(--[a-z][a-z-]+)", GUIDE)) - {"--version"}
    assert {option for option in told if option not in helped} == set()


def test_revocation_by_the_guide(made: Path) -> None:
    """Each of the guide's two commands writes a file that revokes its certificate and no other."""
    ca = x509.load_pem_x509_certificate((made / "ca.crt").read_bytes())
    key = serialization.load_pem_private_key((made / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    ann, slurm = ((made / f"{name}.crt").read_bytes() for name in ("ann", "slurm"))
    now = dt.datetime.now(dt.UTC)
    gone = (
        x509.RevokedCertificateBuilder()
        .serial_number(x509.load_pem_x509_certificate(ann).serial_number)
        .revocation_date(now)
        .build()
    )
    revoked = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(ca.subject)
        .last_update(now)
        .next_update(now + dt.timedelta(days=1))
        .add_revoked_certificate(gone)
        .sign(key, hashes.SHA256())
    )
    (made / "ca.crl").write_bytes(revoked.public_bytes(serialization.Encoding.PEM))
    commands = block("*Revocation.*", "sh").splitlines()
    assert len(commands) == 2
    for command in commands:
        (made / "revoked").unlink(missing_ok=True)
        subprocess.run(["sh", "-euc", command], cwd=made, check=True)
        listed = Revoked(made / "revoked")
        assert (listed.names(ann), listed.names(slurm)) == (True, False), command
