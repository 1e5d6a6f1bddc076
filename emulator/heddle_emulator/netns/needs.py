"""What a machine must have for a lab, told before anything is begun."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from heddle_emulator.netns import LabError

FRR = Path("/usr/lib/frr")
TOOLS = {"ip": "iproute2", "tc": "iproute2", "nft": "nftables"}
DAEMONS = ("zebra", "bgpd", "bfdd")


def missing() -> str:
    """What keeps this machine from running a lab, and the cure; empty where nothing does."""
    return "; ".join(_faults())


def check_needs() -> None:
    """Go on only where a lab can be run.

    Raises:
        LabError: naming all that is missing.
    """
    faults = missing()
    if faults:
        raise LabError(f"no lab on this machine: {faults}")


def _faults() -> Iterator[str]:
    if os.geteuid() != 0:
        yield "it needs root, for network namespaces: use sudo"
    packages = {package for tool, package in TOOLS.items() if shutil.which(tool) is None}
    if any(not (FRR / daemon).exists() for daemon in DAEMONS):
        packages.add("frr")
    if packages:
        yield f"programs are missing: apt-get install {' '.join(sorted(packages))}"
    if not Path("/proc/self/ns/net").exists():
        yield "this kernel has no network namespaces"
