"""A cluster's API, a real controller with a fabric's agents, and heddle-kubernetes between them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from lightkube.config.kubeconfig import KubeConfig

from heddle.client import Client, NotFound
from heddle.v1 import fabric_pb2
from heddle.v1 import placement_pb2 as pb
from heddle_controller.model.fabric import Fabric
from heddle_controller.serve.codec.fabric import fabric_to_pb
from heddle_emulator.fleet.agents import Fleet
from heddle_emulator.fleet.controller import Controller
from heddle_kubernetes.admission import Limits
from heddle_kubernetes.app import Settings, serve
from tests.support.kube_api import Json, KubeApi, kube_api, now
from tests.support.kube_schemas import EVERYTHING
from tests.support.ports import free_port
from tests.support.slurm_world import Background, even_and_odd
from tests.support.waiting import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
MANIFEST = FOLDER / "heddle-kubernetes.yaml"
PROGRAM = Path(sys.executable).with_name("heddle-kubernetes")
CHECK, SPACE = "heddle", "team"
INDEX = "batch.kubernetes.io/job-completion-index"
SHAPE = "gpus=1 all_reduce=dp:1GiB"
PODS = {"containers": [{"name": "train", "image": "train"}]}
WAIT = 600.0
"""Time limit for tests in which it must not be reached."""


def allowed_by(manifest: Path) -> Callable[[str, str, str, str], bool]:
    """Return a function that says what the role of a manifest allows."""
    documents = list(yaml.safe_load_all(manifest.read_text()))
    (role,) = [one for one in documents if one["kind"] == "ClusterRole"]

    def allowed(verb: str, group: str, resource: str, name: str) -> bool:
        return any(
            group in rule["apiGroups"]
            and resource in rule["resources"]
            and verb in rule["verbs"]
            and name in rule.get("resourceNames", [name])
            for rule in role["rules"]
        )

    return allowed


def assignment(hosts: Sequence[str], pods: int = 1) -> Json:
    """Return a topologyAssignment as Kueue writes it if host names share their first letter."""
    prefix = hosts[0][:1] if all(host[:1] == hosts[0][:1] for host in hosts) else ""
    roots = [host.removeprefix(prefix) for host in hosts]
    values: Json = {"roots": roots, **({"prefix": prefix} if prefix else {})}
    one = {
        "domainCount": len(hosts),
        "valuesPerLevel": [{"individual": values}],
        "podCounts": {"universal": pods},
    }
    return {"levels": ["kubernetes.io/hostname"], "slices": [one]}


def workload(
    name: str,
    hosts: Sequence[str],
    shape: str | None = SHAPE,
    *,
    state: str = "Pending",
    reserved: str | None = None,
) -> Json:
    """Return a workload of an indexed job whose quota is reserved."""
    count = len(hosts)
    annotations = {} if shape is None else {"heddle.run/shape": shape}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": name, "namespace": SPACE},
        "spec": {
            "active": True,
            "queueName": "gpus",
            "podSets": [
                {
                    "name": "main",
                    "count": count,
                    "template": {"metadata": {"annotations": annotations}, "spec": PODS},
                    "topologyRequest": {
                        "podIndexLabel": "batch.kubernetes.io/job-completion-index"
                    },
                }
            ],
        },
        "status": {
            "conditions": [condition("QuotaReserved", "True", reserved)],
            "admission": {
                "clusterQueue": "gpus",
                "podSetAssignments": [
                    {"name": "main", "count": count, "topologyAssignment": assignment(hosts)}
                ],
            },
            "admissionChecks": [
                check_state("other", "Pending"),
                check_state(CHECK, state),
            ],
        },
    }


def check_state(name: str, state: str) -> Json:
    """Return the state of a check as Kueue creates it."""
    return {"name": name, "state": state, "lastTransitionTime": now(), "message": ""}


def condition(kind: str, status: str, since: str | None = None) -> Json:
    """Return a condition of a workload."""
    return {
        "type": kind,
        "status": status,
        "reason": "Test",
        "message": "as a test has it",
        "lastTransitionTime": since or now(),
    }


@dataclass
class World:
    """The cluster's API, the controller, and running programs."""

    folder: Path
    fabric: Fabric
    background: Background
    address: str
    api: KubeApi
    controller: Controller
    stack: AsyncExitStack
    running: list[asyncio.Task[None]] = field(default_factory=list)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def on_api(self, act: Callable[[KubeApi], Any]) -> Any:
        """Do something to the API server, in its own thread."""

        async def run() -> Any:
            return act(self.api)

        return self.background.run(run())

    def start(
        self, *, servers: str = "", wait: float = WAIT, sweep: float = 0.5, **settings: Any
    ) -> int:
        """Start heddle-kubernetes in this process; return a number for ``stop``."""
        made = Settings(
            servers=servers or self.address,
            fabric="f1",
            limits=Limits(wait=wait, sweep=sweep),
            **settings,
        )

        async def begin() -> int:
            config = KubeConfig.from_file(self.kubeconfig)
            self.running.append(asyncio.create_task(serve(made, config)))
            return len(self.running) - 1

        return self.background.run(begin())

    def stop(self, number: int | None = None) -> None:
        """Stop one instance, or all."""
        chosen = [*self.running] if number is None else [self.running[number]]
        if number is None:
            self.running.clear()

        async def end() -> list[BaseException | None]:
            for task in chosen:
                task.cancel()
            return await asyncio.gather(*chosen, return_exceptions=True)

        for error in self.background.run(end()):
            if error is not None and not isinstance(error, asyncio.CancelledError):
                raise error

    @property
    def kubeconfig(self) -> Path:
        """A file that says how to reach the API."""
        file = self.folder / "kubeconfig"
        cluster, user = self.api.access
        file.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "c", "cluster": {"server": self.api.url, **cluster}}],
                    "users": [{"name": "u", "user": user}],
                    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "x",
                }
            )
        )
        return file

    def launch(self, *words: str) -> subprocess.Popen[bytes]:
        """Start heddle-kubernetes as a process of its own."""
        with (self.folder / "heddle-kubernetes.log").open("ab") as log:
            process = subprocess.Popen(
                [PROGRAM, "serve", "--server", self.address, "--fabric", "f1", *words],
                env={**os.environ, "KUBECONFIG": str(self.kubeconfig)},
                stderr=log,
            )
        self.processes.append(process)
        return process

    def put(self, plural: str, one: Json) -> None:
        """Create or replace an object."""
        self.on_api(lambda api: api.put(plural, one))

    def submit(self, one: Json) -> str:
        """Create a workload whose quota is reserved now; return its key."""
        conditions = one["status"]["conditions"]
        fresh = [{**each, "lastTransitionTime": now()} for each in conditions]
        self.put("workloads", {**one, "status": {**one["status"], "conditions": fresh}})
        return f"{SPACE}/{one['metadata']['name']}"

    def change(self, key: str, change: Json) -> None:
        """Merge a change into a workload."""
        space, _, name = key.partition("/")
        self.on_api(lambda api: api.change("workloads", space, name, change))

    def move(self, key: str, hosts: Sequence[str]) -> None:
        """Give an admitted workload other hosts, as Kueue does when a node has failed."""
        self.change(key, {"status": {"admission": workload("", hosts)["status"]["admission"]}})

    def conclude(self, key: str, kind: str) -> None:
        """Add a condition to a workload."""
        before = self.of("workloads")[key]["status"]["conditions"]
        conditions = [one for one in before if one["type"] != kind]
        self.change(key, {"status": {"conditions": [*conditions, condition(kind, "True")]}})

    def remove(self, key: str) -> None:
        """Delete a workload."""
        space, _, name = key.partition("/")
        self.on_api(lambda api: api.remove("workloads", space, name))

    def of(self, plural: str) -> dict[str, Json]:
        """Return the objects of a kind."""
        found: dict[str, Json] = self.on_api(lambda api: api.of(plural))
        return found

    def check(self, key: str, name: str = CHECK) -> Json:
        """Return the state of a workload's check."""
        states = self.of("workloads")[key]["status"]["admissionChecks"]
        return next(one for one in states if one["name"] == name)

    def ready(self, key: str) -> str:
        """Wait until a workload's check is Ready; return its message."""
        wait_until(lambda: self.fit() and self.check(key)["state"] == "Ready", f"{key} to be Ready")
        message: str = self.check(key)["message"]
        return message

    def fit(self) -> bool:
        """Return True if everything that was started runs; fail otherwise."""
        for task in self.running:
            assert not task.done(), task
        return True

    def jobs(self) -> dict[str, pb.Job]:
        """Return the controller's jobs by name."""
        with Client(self.address, fabric="f1", timeout=PATIENCE) as client:
            return {job.name.rpartition("/")[2]: job for job in client.list_jobs()}

    def job(self, key: str) -> pb.Job | None:
        """Return the job of a workload; None if there is none."""
        name = key.partition("/")[2]
        found = [job for known, job in self.jobs().items() if f"-{name}-" in known]
        return found[0] if found else None

    def put_fabric(self, fabric: Fabric) -> None:
        """Replace the fabric."""
        with Client(self.address, timeout=PATIENCE) as client:
            client.fabrics.PutFabric(fabric_pb2.PutFabricRequest(fabric=fabric_to_pb("f1", fabric)))

    def kill_controller(self) -> None:
        """Kill the controller with SIGKILL."""
        self.background.run(self.controller.kill())

    def start_controller(self) -> None:
        """Start the controller again, with its store and address."""
        self.controller = Controller(self.folder, f"--listen={self.address}")
        self.background.run(self.controller.__aenter__())

    def tidy(self) -> None:
        """End what a test has started."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait()
        self.processes.clear()
        self.stop()

        self.on_api(lambda api: api.clear())
        wait_until(self._no_job_is_left, "what the test asked for last to be done")

    def _no_job_is_left(self) -> bool:
        """Delete all jobs; return whether there was none."""
        with Client(self.address, fabric="f1", timeout=PATIENCE) as client:
            found = client.list_jobs()
            for job in found:
                with suppress(NotFound):  # it may end just now, as was asked for
                    client.delete_job(job.name.rpartition("/")[2])
        return not found


@contextmanager
def kube_world(folder: Path, server: KubeApi | None = None) -> Iterator[World]:
    """Run a cluster with the check, a controller with a fabric of eight hosts, and its agents.

    The API server is the small one of ``kube_api``, unless ``server`` is given.
    """
    background = Background()
    address = f"127.0.0.1:{free_port()}"
    fabric, stack = even_and_odd(), AsyncExitStack()
    api = server or background.run(stack.enter_async_context(kube_api(EVERYTHING)))
    controller = Controller(folder, f"--listen={address}")
    world = World(folder, fabric, background, address, api, controller, stack)
    try:
        world.start_controller()
        world.put_fabric(fabric)
        fleet = Fleet(fabric, [address])
        background.run(stack.enter_async_context(fleet))
        background.run(fleet.connected(PATIENCE))
        if server is None:
            world.on_api(_furnish)
        yield world
    finally:
        world.tidy()
        background.run(stack.aclose())
        background.run(world.controller.__aexit__())
        background.close()


def _furnish(api: KubeApi) -> None:
    api.allowed = allowed_by(MANIFEST)
    api.put("namespaces", {"metadata": {"name": "kube-system"}})
    documents = list(yaml.safe_load_all(MANIFEST.read_text()))
    (check,) = [one for one in documents if one["kind"] == "AdmissionCheck"]
    check["metadata"]["generation"] = 1
    api.put("admissionchecks", check)
