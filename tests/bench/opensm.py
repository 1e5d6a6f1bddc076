"""OpenSM on ibsim: the subnet manager of InfiniBand, on a fabric that is not there.

Debian has both (packages opensm, ibsim-utils); where they are missing the bench says
so and goes on. Each run has a folder and a socket of its own, and ends what it
started by id.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from heddle_controller.model.fabric import Fabric, Ints, NodeKind
from heddle_controller.model.flows import Flows
from heddle_emulator.walk import Measurement, measure
from tests.bench import opensm_files
from tests.bench.opensm_files import Times

PACKAGES = "apt-get install opensm ibsim-utils"
MOST_WALKED = 4096
"""NICs; above that the dump of all tables is gigabytes."""
READY = "Network simulator ready"
READY_SECONDS = 60
SWEEP_SECONDS = 900
STOP_SECONDS = 10
VERBOSE, TABLES = 0x07, 0x47


class OpensmError(RuntimeError):
    """It did not do what it should, in one line."""


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Forwarding tables that OpenSM made for a fabric."""

    fabric: Fabric
    arc: Ints
    """By switch and NIC, shape (nodes, nodes)."""
    times: Times

    def forward(self, switch: Ints, source: Ints, destination: Ints, source_port: Ints) -> Ints:  # noqa: ARG002 - a Forwarding
        """By the destination alone, as InfiniBand does."""
        chosen: Ints = self.arc[switch, destination]
        return chosen

    def measure(self, flows: Flows) -> Measurement:
        """Walk the packets of flows through the tables."""
        return measure(self.fabric, flows, self)


@cache
def missing() -> str:
    """What is not on this machine, and how it comes there; empty if all is."""
    gone = [name for name in ("opensm", "ibsim") if _program(name) is None]
    if _library() is None:
        gone.append("libumad2sim.so")
    return f"{', '.join(gone)} not installed ({PACKAGES})" if gone else ""


def walkable(fabric: Fabric) -> bool:
    """Whether its tables are of two tiers and small enough to be dumped."""
    kinds = {NodeKind(int(kind)) for kind in set(fabric.structure.nodes.kind.tolist())}
    few = len(fabric.rows_of_kind(NodeKind.NIC)) <= MOST_WALKED
    return few and kinds == {NodeKind.NIC, NodeKind.LEAF, NodeKind.SPINE}


def tables(fabric: Fabric) -> Tables:
    """Route a fabric by ftree and read the tables."""
    with _swept(fabric, TABLES) as folder:
        with (folder / "opensm-lfts.dump").open(encoding="utf-8") as dump:
            arc = opensm_files.forwarding(fabric, dump)
        return Tables(fabric, arc, _times(folder))


def timed(fabric: Fabric) -> Times:
    """Route a fabric by ftree, of any size, and say how long it took."""
    with _swept(fabric, VERBOSE) as folder:
        return _times(folder)


def _times(folder: Path) -> Times:
    try:
        return opensm_files.times((folder / "log").read_text(encoding="utf-8", errors="replace"))
    except ValueError as error:
        raise OpensmError(str(error)) from error


@contextmanager
def _swept(fabric: Fabric, flags: int) -> Iterator[Path]:
    """A folder with what one sweep left; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="heddle-opensm-") as name:
        folder = Path(name)
        (folder / "net").write_text(opensm_files.network(fabric), encoding="utf-8")
        (folder / "roots").write_text(opensm_files.roots(fabric), encoding="utf-8")
        environment = os.environ | {
            "IBSIM_SOCKNAME": f"heddle-{uuid.uuid4().hex[:8]}",
            "OSM_CACHE_DIR": name,
            "OSM_TMP_DIR": name,
            "SIM_HOST": fabric.structure.nodes.ids[int(fabric.rows_of_kind(NodeKind.NIC)[0])],
        }
        with _ibsim(fabric, folder, environment):
            _sweep(folder, environment, flags)
            yield folder


@contextmanager
def _ibsim(fabric: Fabric, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    counts = {
        "-N": fabric.node_count,
        "-S": len(opensm_files.switch_rows(fabric)),
        "-P": 2 * fabric.link_count + fabric.node_count,
        "-L": fabric.node_count + 1,
    }
    sizes = [word for option, count in counts.items() for word in (option, str(count + 64))]
    command = [str(_program("ibsim")), "-s", *sizes, "net"]
    said = folder / "ibsim"
    with said.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=out, stderr=out
        )
    try:
        deadline = time.monotonic() + READY_SECONDS
        while READY not in (text := said.read_text(errors="replace")):
            if process.poll() is not None or time.monotonic() > deadline:
                last = text.strip().splitlines()[-1:] or ["nothing"]
                raise OpensmError(f"ibsim did not take the network; its last words: {last[0]}")
            time.sleep(0.05)
        yield
    finally:
        _end(process)


def _sweep(folder: Path, environment: dict[str, str], flags: int) -> None:
    """One sweep of OpenSM, after which it ends by itself."""
    command = [
        *(str(_program("opensm")), "-R", "ftree", "-a", "roots", "-s", "0", "-o", "-f", "log"),
        *("-D", f"0x{flags:x}", "-d", "2", "--dump_files_dir", str(folder)),
    ]
    preloaded = environment | {"LD_PRELOAD": str(_library())}
    with (folder / "opensm").open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=preloaded,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        code = process.wait(SWEEP_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise OpensmError(f"OpenSM was not done within {SWEEP_SECONDS} s") from error
    finally:
        _end(process)
    if code:
        last = (folder / "opensm").read_text(errors="replace").strip().splitlines()[-1:]
        raise OpensmError(f"OpenSM ended with exit code {code}: {''.join(last)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End one process, asked first and then made to."""
    if process.stdin is not None:
        process.stdin.close()
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _program(name: str) -> str | None:
    """Where a program is; system programs may be off the path of a plain user."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def _library() -> Path | None:
    return next(iter(sorted(Path("/usr/lib").glob("*/umad2sim/libumad2sim.so"))), None)
