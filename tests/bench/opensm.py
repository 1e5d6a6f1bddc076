"""OpenSM, the subnet manager of InfiniBand, on a fabric that ibsim simulates.

Debian has both (packages opensm, ibsim-utils). Where they are missing, the bench says so and goes
on. Each run has a folder and a socket of its own, and ends the processes that it started by their
ids.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from heddle_controller.model.arrays import Ints
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import Flows
from heddle_emulator.walk import Measurement, measure
from tests.bench import opensm_files
from tests.bench.opensm_files import Times

PACKAGES = "apt-get install opensm ibsim-utils"
MOST_WALKED = 4096
"""Most NICs of a fabric to walk; above that the dump of all tables is gigabytes."""
READY = "Network simulator ready"
READY_SECONDS = 60
SWEEP_SECONDS = 900
STOP_SECONDS = 10
PAUSE = 0.05
VERBOSE, TABLES = 0x07, 0x47


class OpensmError(RuntimeError):
    """OpenSM or ibsim failed; the message is one line."""


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """Forwarding tables that OpenSM made for a fabric."""

    fabric: Fabric
    arc: Ints
    """The arc by switch and destination NIC, shape (nodes, nodes)."""
    times: Times

    def forward(self, switch: Ints, source: Ints, destination: Ints, source_port: Ints) -> Ints:  # noqa: ARG002 - a Forwarding
        """Choose the arc by the destination alone, as InfiniBand does."""
        chosen: Ints = self.arc[switch, destination]
        return chosen

    def measure(self, flows: Flows) -> Measurement:
        """Walk the packets of flows through the tables."""
        return measure(self.fabric, flows, self)


@cache
def missing() -> str:
    """Say which programs are missing and how to install them; empty if none is."""
    gone = [name for name in ("opensm", "ibsim") if _program(name) is None]
    if _library() is None:
        gone.append("libumad2sim.so")
    return f"{', '.join(gone)} not installed ({PACKAGES})" if gone else ""


def walkable(fabric: Fabric) -> bool:
    """Whether a fabric has two tiers, and is small enough for its tables to be dumped."""
    kinds = {NodeKind(int(kind)) for kind in set(fabric.structure.nodes.kind.tolist())}
    few = len(fabric.rows_of_kind(NodeKind.NIC)) <= MOST_WALKED
    return few and kinds == {NodeKind.NIC, NodeKind.LEAF, NodeKind.SPINE}


def tables(fabric: Fabric) -> Tables:
    """Route a fabric by ftree and read the tables."""
    with _site(fabric) as site, _ibsim(site), _manager(site, TABLES, "-o") as manager:
        _wait(manager, site)
        with (site.folder / "opensm-lfts.dump").open(encoding="utf-8") as dump:
            arc = opensm_files.forwarding(fabric, dump)
        return Tables(fabric, arc, _told(opensm_files.times, site))


def discovered(fabric: Fabric) -> str:
    """Return what ibnetdiscover prints for a fabric."""
    with _site(fabric) as site, _ibsim(site):
        done = subprocess.run(
            ["ibnetdiscover"],
            env=site.environment | {"LD_PRELOAD": str(_library())},
            cwd=site.folder,
            capture_output=True,
            text=True,
            timeout=SWEEP_SECONDS,
            check=False,
        )
    if done.returncode:
        raise OpensmError(f"ibnetdiscover ended with exit code {done.returncode}: {done.stderr}")
    return done.stdout


def timed(fabric: Fabric) -> Times:
    """Route a fabric of any size by ftree, and return how long it took."""
    with _site(fabric) as site, _ibsim(site), _manager(site, VERBOSE, "-o") as manager:
        _wait(manager, site)
        return _told(opensm_files.times, site)


def rerouted(fabric: Fabric, link: int) -> Times:
    """Route a fabric, take a link away, and return how long the subnet took to be up again."""
    arc = 2 * link
    node = fabric.structure.nodes.ids[int(fabric.structure.tail[arc])]
    unlink = f'Unlink "{node}"[{opensm_files.ports(fabric)[arc]}]\n'
    with _site(fabric) as site, _ibsim(site) as simulator:
        with _manager(site, VERBOSE) as manager:
            _until_up(manager, site, 1)
            assert simulator.stdin is not None
            simulator.stdin.write(unlink.encode())
            simulator.stdin.flush()
            _until_up(manager, site, 2)
        return _told(opensm_files.times_again, site)


def _told(read: Callable[[str], Times], site: _Site) -> Times:
    try:
        return read(site.log())
    except ValueError as error:
        raise OpensmError(str(error)) from error


@dataclass(frozen=True, slots=True, eq=False)
class _Site:
    """The files of one run, and the environment of its programs."""

    fabric: Fabric
    folder: Path
    environment: dict[str, str]

    def log(self) -> str:
        """Return what OpenSM has logged so far."""
        path = self.folder / "log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


@contextmanager
def _site(fabric: Fabric) -> Iterator[_Site]:
    """Make a folder with the files of a run, which is removed afterwards."""
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
        yield _Site(fabric, folder, environment)


@contextmanager
def _ibsim(site: _Site) -> Iterator[subprocess.Popen[bytes]]:
    """Start a simulator and wait for it to load the network.

    It takes commands on its standard input.
    """
    fabric = site.fabric
    counts = {
        "-N": fabric.node_count,
        "-S": len(opensm_files.switch_rows(fabric)),
        "-P": 2 * fabric.link_count + fabric.node_count,
        "-L": fabric.node_count + 1,
    }
    sizes = [word for option, count in counts.items() for word in (option, str(count + 64))]
    said = site.folder / "ibsim"
    command = [str(_program("ibsim")), "-s", *sizes, "net"]
    with _started(command, site, said, site.environment) as process:
        deadline = time.monotonic() + READY_SECONDS
        while READY not in said.read_text(errors="replace"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise OpensmError(f"ibsim did not take the network{_last_words(said)}")
            time.sleep(PAUSE)
        yield process


@contextmanager
def _manager(site: _Site, flags: int, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start OpenSM. With the option -o it ends by itself after one sweep."""
    command = [
        *(str(_program("opensm")), "-R", "ftree", "-a", "roots", "-s", "0", "-f", "log"),
        *("-D", f"0x{flags:x}", "-d", "2", "--dump_files_dir", str(site.folder), *options),
    ]
    preloaded = site.environment | {"LD_PRELOAD": str(_library())}
    with _started(command, site, site.folder / "opensm", preloaded) as process:
        yield process


def _wait(manager: subprocess.Popen[bytes], site: _Site) -> None:
    """Wait until OpenSM ends."""
    try:
        code = manager.wait(SWEEP_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise OpensmError(f"OpenSM was not done within {SWEEP_SECONDS} s") from error
    if code:
        words = _last_words(site.folder / "opensm")
        raise OpensmError(f"OpenSM ended with exit code {code}{words}")


def _until_up(manager: subprocess.Popen[bytes], site: _Site, sweeps: int) -> None:
    """Wait until so many sweeps have ended."""
    deadline = time.monotonic() + SWEEP_SECONDS
    while opensm_files.sweeps(site.log()) < sweeps:
        if manager.poll() is not None:
            raise OpensmError(f"OpenSM ended early{_last_words(site.folder / 'opensm')}")
        if time.monotonic() > deadline:
            raise OpensmError(f"OpenSM was not done within {SWEEP_SECONDS} s")
        time.sleep(PAUSE)


def _last_words(said: Path) -> str:
    words = said.read_text(errors="replace").strip().splitlines()[-1:]
    return f"; its last words: {words[0]}" if words else ""


@contextmanager
def _started(
    command: list[str], site: _Site, said: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process, and end it by its id on the way out."""
    with said.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=site.folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End one process: ask it first, then kill it."""
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
    """Return the path of a program; system programs may be off the path of a plain user."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def _library() -> Path | None:
    return next(iter(sorted(Path("/usr/lib").glob("*/umad2sim/libumad2sim.so"))), None)
