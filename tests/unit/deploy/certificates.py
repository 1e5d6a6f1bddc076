"""Certificates for tests, made by openssl: an authority, and the certificates that it signs."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.needs import missing

USES = "extendedKeyUsage=serverAuth,clientAuth"


@dataclass(frozen=True, slots=True)
class Pair:
    """PEM files of a certificate and its private key."""

    cert: Path
    key: Path


def openssl(*arguments: str | Path) -> None:
    """Run openssl. It may be missing except in CI, where `.ci/setup test` installs it."""
    program = shutil.which("openssl")
    if program is None:
        assert os.environ.get("CI") != "true", "openssl is missing: see .ci/setup"
        missing("openssl is not installed: apt-get install openssl")
    subprocess.run([program, *arguments], check=True, capture_output=True)


def authority(folder: Path, name: str) -> Pair:
    """Make an authority."""
    made = Pair(folder / f"{name}.crt", folder / f"{name}.key")
    openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-subj", f"/CN={name}", "-days", "2", "-keyout", made.key, "-out", made.cert),
    )
    return made


def signed(folder: Path, by: Pair, name: str) -> Pair:
    """Make a certificate for a host name, for use by servers and clients."""
    made = Pair(folder / f"{name}.crt", folder / f"{name}.key")
    request, extensions = folder / f"{name}.csr", folder / f"{name}.ext"
    extensions.write_text(f"subjectAltName=DNS:{name}\n{USES}\n", encoding="utf-8")
    openssl(
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-subj", f"/CN={name}", "-keyout", made.key, "-out", request),
    )
    openssl(
        *("x509", "-req", "-in", request, "-CA", by.cert, "-CAkey", by.key, "-CAcreateserial"),
        *("-days", "2", "-extfile", extensions, "-out", made.cert),
    )
    return made
