"""A Slurm whose nodes are a fabric's hosts, with a real controller and the fabric's agents."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from heddle.client import Client
from heddle.v1 import placement_pb2 as pb
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import parse_fabric, save_fabric_file
from heddle_emulator.fleet.agents import Fleet
from heddle_emulator.fleet.controller import Controller
from tests.support.ports import free_port
from tests.support.slurm import Slurm, slurm_files
from tests.support.waiting import PATIENCE

T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "deploy" / "slurm" / "README.md"
BLOCK = re.compile(
    r"<!-- (?P<how>type|file|append)(?: (?P<file>\S+))? -->\n```\n(?P<text>.*?)```", re.DOTALL
)
HEDDLE = Path(sys.executable).with_name("heddle")
NODES = tuple(f"n{number}" for number in range(8))
EVEN, ODD = ("n0", "n2", "n4", "n6"), ("n1", "n3", "n5", "n7")


def even_and_odd(
    leaf_of: Callable[[int], int] = lambda number: number % 2, hosts: Sequence[str] = NODES
) -> Fabric:
    """Put even hosts under one leaf, odd ones under the other, with half as many links between.

    So a ring in alphabetical order crosses the spines with every hop.

    Args:
        leaf_of: Returns the leaf of a host, given its number.
        hosts: The hosts of the fabric.
    """
    nodes: list[dict[str, Any]] = [{"id": f"l{leaf}", "kind": "leaf"} for leaf in range(2)]
    nodes += [{"id": f"s{spine}", "kind": "spine"} for spine in range(2)]
    edges: list[dict[str, Any]] = [
        {"source": f"l{leaf}", "target": f"s{spine}", "key": 0, "gbps": 400}
        for leaf in range(2)
        for spine in range(2)
    ]
    for host in hosts:
        number, nic = NODES.index(host), f"{host}-nic"
        nodes.append({"id": nic, "kind": "nic", "host": host, "address": f"10.0.0.{number}"})
        edges.append({"source": nic, "target": f"l{leaf_of(number)}", "key": 0, "gbps": 400})
    return parse_fabric({"graph": {"name": "f1"}, "nodes": nodes, "edges": edges}, "even and odd")


class Background:
    """An event loop in a thread, for work that goes on while a test waits for Slurm."""

    def __init__(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def close(self) -> None:
        """Stop the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@dataclass
class World:
    """Slurm, the controller, and the settings that join them."""

    slurm: Slurm
    address: str
    background: Background
    folder: Path
    controller: Controller

    @property
    def spool(self) -> Path:
        """The folder of the prolog and the epilog."""
        return self.slurm.folder / "spool"

    def here(self, text: str) -> str:
        """Return a page's text with the folders and the controller address of this world."""
        for there, here in (
            ("/opt/heddle/bin", HEDDLE.parent),
            ("/var/spool/heddle-slurm", self.spool),
            ("/etc/heddle/slurm", self.slurm.folder),
            ("/etc/slurm", self.slurm.folder),
            ("127.0.0.1:7400", self.address),
        ):
            text = text.replace(there, str(here))
        return text

    def follow(self, page: str) -> list[str]:
        """Do what a part of a page says; return what was printed, by block."""
        printed = []
        for block in BLOCK.finditer(self.here(page)):
            if block["how"] == "type":
                lines = block["text"].replace("deploy/slurm", str(PAGE.parent))
                printed.append(self.slurm.must("bash", "-euc", lines, **self.environment))
                continue
            mode = "a" if block["how"] == "append" else "w"
            with (self.slurm.folder / block["file"]).open(mode) as file:
                file.write(block["text"])
        return printed

    def set(self, **settings: str) -> None:
        """Write the settings of Heddle's prolog and epilog, which new processes read."""
        known = {
            "HEDDLE": str(HEDDLE),
            "HEDDLE_SERVER": self.address,
            "HEDDLE_SLURM_DIRECTORY": str(self.spool),
            "HEDDLE_SLURM_WAIT": "25",
            "HEDDLE_SLURM_ANSWER": "20",
            "SLURM_CONF": str(self.slurm.file),
        }
        lines = [f"{name}='{value}'\n" for name, value in (known | settings).items()]
        fresh = self.slurm.folder / "heddle.env.new"
        fresh.write_text("".join(lines))
        fresh.replace(self.slurm.folder / "heddle.env")

    def log(self) -> str:
        """Return what prologs and epilogs have logged."""
        path = self.spool / "log"
        return path.read_text() if path.exists() else ""

    @property
    def environment(self) -> dict[str, str]:
        """Variables that tell Heddle's programs where their controller is."""
        return {"HEDDLE_SERVER": self.address, "TMPDIR": str(self.slurm.folder)}

    def client(self) -> Client:
        """Return a client of the controller; use it as ``with``."""
        return Client(self.address, timeout=PATIENCE)

    def heddle(self, *words: str | Path) -> str:
        """Run an operator's command and return what it prints."""
        return self.slurm.must(HEDDLE, *words, **self.environment)

    def jobs(self) -> dict[str, pb.Job]:
        """Return the controller's jobs by name."""
        with self.client() as client:
            return {job.name.rpartition("/")[2]: job for job in client.list_jobs()}

    def etags(self) -> dict[str, str]:
        """Return the jobs' etags, which depend on their specifications, not on their state."""
        return {name: job.etag for name, job in self.jobs().items()}

    def kill_controller(self) -> None:
        """Kill the controller with SIGKILL."""
        self.background.run(self.controller.kill())

    def start_controller(self) -> None:
        """Start the controller again, with its store and address."""
        self.controller = _controller(self.folder, self.address)
        self.background.run(self.controller.__aenter__())


def _controller(folder: Path, address: str) -> Controller:
    return Controller(folder, f"--listen={address}")


@contextmanager
def slurm_world(folder: Path) -> Iterator[World]:
    """Prepare everything except Slurm, which is started once it is configured."""
    with slurm_files(NODES) as slurm:
        background = Background()
        address = f"127.0.0.1:{free_port()}"
        fabric = even_and_odd()
        stack = AsyncExitStack()
        world = World(slurm, address, background, folder, _controller(folder, address))
        try:
            world.start_controller()
            save_fabric_file(fabric, folder / "fabric.json")
            world.heddle("fabric", "import", folder / "fabric.json", "--fabric", "f1")
            fleet = Fleet(fabric, [address])
            background.run(stack.enter_async_context(fleet))
            background.run(fleet.connected(PATIENCE))
            yield world
        finally:
            slurm.close()
            background.run(stack.aclose())
            background.run(world.controller.__aexit__())
            background.close()
