#!/usr/bin/env python3
"""Run uv with the settings of pip: `deploy/uv.py pip install ...`, here or `--python THERE`.

uv installs the lock in a tenth of pip's time, but reads none of pip's settings. They matter on a
machine that reaches packages through its own index, folder or certificate.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

SECTIONS = ("global", "install", ":env:")
"""Sections of pip's settings. Later ones override earlier ones."""
ONE = {
    "index-url": "UV_DEFAULT_INDEX",
    "no-index": "UV_NO_INDEX",
    "timeout": "UV_HTTP_TIMEOUT",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
}
MANY = {
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
}
"""Settings with several values: the variable, and the separator between its values."""


def variables(listed: Iterable[str]) -> dict[str, str]:
    """Return variables of uv for lines of `pip config list`, for example global.cert='/a/file'."""
    told: dict[tuple[str, str], str] = {}
    for line in listed:
        name, _, value = line.partition("=")
        section, _, key = name.strip().rpartition(".")
        told[section, key] = str(ast.literal_eval(value))
    found: dict[str, str] = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # as pip: all indexes equal
    for section in SECTIONS:
        for key, name in ONE.items():
            if value := told.get((section, key), ""):
                found[name] = value
        for key, (name, between) in MANY.items():
            if value := told.get((section, key), ""):
                found[name] = between.join(value.split())
    return found


def main() -> int:
    """Run uv; variables that were set for uv itself override pip's settings."""
    pip = [sys.executable, "-m", "pip", "config", "list"]
    said = subprocess.run(pip, check=True, capture_output=True, text=True)  # noqa: S603 - ours
    listed = said.stdout.splitlines()
    env = {**os.environ, **variables(listed)}
    env |= {key: value for key, value in os.environ.items() if key.startswith("UV_")}
    uv = Path(sys.executable).with_name("uv")
    to = () if "--python" in sys.argv else ("--python", sys.executable)
    command = [os.fspath(uv), *sys.argv[1:], "--no-config", *to]
    return subprocess.run(command, env=env, check=False).returncode  # noqa: S603 - as told


if __name__ == "__main__":
    sys.exit(main())
