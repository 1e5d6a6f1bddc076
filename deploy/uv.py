#!/usr/bin/env python3
"""Run uv with what pip has been told: `deploy/uv.py pip install ...`, here or `--python THERE`.

uv installs the lock in a tenth of pip's time, and reads none of pip's settings. A machine that
reaches packages through an index, a folder or a certificate of its own has told pip so.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

SECTIONS = ("global", "install", ":env:")
"""Of pip's settings, the stronger ones later."""
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
"""Name and what stands between the values."""


def variables(listed: Iterable[str]) -> dict[str, str]:
    """Variables of uv for what `pip config list` says, a setting a line: global.cert='/a/file'."""
    told: dict[tuple[str, str], str] = {}
    for line in listed:
        name, _, value = line.partition("=")
        section, _, key = name.strip().rpartition(".")
        told[section, key] = str(ast.literal_eval(value))
    found: dict[str, str] = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # as pip: all count alike
    for section in SECTIONS:
        for key, name in ONE.items():
            if value := told.get((section, key), ""):
                found[name] = value
        for key, (name, between) in MANY.items():
            if value := told.get((section, key), ""):
                found[name] = between.join(value.split())
    return found


def main() -> int:
    """Run uv; what uv itself was told comes first."""
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
