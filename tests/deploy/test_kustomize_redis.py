"""The scripts that start Redis and its sentinels in pods, run as the pods run them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.kubectl import OVERLAYS, Thing, kubectl, render
from tests.support.needs import missing
from tests.support.waiting import wait_until

PASSWORD = "a-password"
ROUND = os.getpid() % 200 + 20
NAMES = tuple(f"127.77.{ROUND}.{number}" for number in (1, 2, 3))
"""Addresses in place of names of pods such as redis-0.redis, which cannot be resolved here."""


@dataclass
class Pod:
    """One pod: a Redis server and a sentinel that share a folder."""

    name: str
    folder: Path
    scripts: Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> None:
        """Start both containers."""
        self.folder.mkdir(exist_ok=True)
        env = {
            "PATH": os.environ["PATH"],
            "NAME": self.name,
            "ADDRESS": self.name,
            "FIRST": NAMES[0],
            "PASSWORD": PASSWORD,
            "DATA": str(self.folder),
        }
        for script in ("start-redis", "start-sentinel"):
            with (self.folder / f"{script}.said").open("ab") as log:
                command = ["/bin/sh", os.fspath(self.scripts / script)]
                self.running.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))

    def kill(self) -> None:
        """Send SIGKILL to both."""
        for process in self.running:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
        self.running.clear()

    def says(self, *words: str, port: int = 6379) -> str:
        """Return what its Redis or its sentinel (by port) answers; empty if there is no answer."""
        secret = {"REDISCLI_AUTH": PASSWORD} if port == 6379 else {}
        done = subprocess.run(
            ["redis-cli", "-h", self.name, "-p", str(port), *words],
            env={"PATH": os.environ["PATH"], **secret},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    def master(self) -> str:
        """Return the address of the master according to its sentinel."""
        return self.says("sentinel", "get-master-addr-by-name", "heddle", port=26379).split("\n")[0]


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[list[Pod]]:
    """The three pods of the StatefulSet, with the scripts of the rendered ConfigMap."""
    if shutil.which("redis-server") is None:
        missing("redis-server: apt-get install redis-server")
    things = render(kubectl(tmp_path), OVERLAYS.joinpath("whole").name)
    (stateful,) = [
        t for t in things if (t["kind"], t["metadata"]["name"]) == ("StatefulSet", "redis")
    ]
    assert stateful["spec"]["replicas"] == len(NAMES)
    (scripts,) = [t for t in things if t["metadata"]["name"].startswith("redis-") and "data" in t]
    written(scripts, tmp_path)
    made = [Pod(name, tmp_path / name, tmp_path) for name in NAMES]
    yield made
    for pod in made:
        pod.kill()


def written(scripts: Thing, folder: Path) -> None:
    """Write the scripts of the ConfigMap as files."""
    for name, text in scripts["data"].items():
        (folder / name).write_text(text)


def test_a_pod_that_is_lost_costs_nothing_that_was_acknowledged(pods: list[Pod]) -> None:
    """The first pod leads. When it is lost, another one leads and has all data.

    The first comes back with an empty folder, as a follower that receives the newest value.
    """
    for pod in pods:
        pod.start()
    first, *others = pods
    wait_until(lambda: [pod.master() for pod in pods] == [NAMES[0]] * 3, "sentinels that agree")
    wait_until(
        lambda: "num-other-sentinels\n2" in first.says("sentinel", "master", "heddle", port=26379),
        "two others",
    )
    wait_until(
        lambda: "num-slaves\n2" in others[0].says("sentinel", "master", "heddle", port=26379),
        "two replicas",
    )
    assert (
        "NOAUTH"
        in subprocess.run(
            ["redis-cli", "-h", first.name, "get", "job"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
    )
    assert first.says("set", "job", "one").strip() == "OK"
    wait_until(lambda: int(first.says("wait", "2", "1000")) == 2, "both replicas to have it")
    first.kill()
    wait_until(
        lambda: (
            {pod.master() for pod in others} <= {*NAMES[1:]}
            and len({pod.master() for pod in others}) == 1
        ),
        "another master",
    )
    leader = next(pod for pod in others if pod.name == others[0].master())
    wait_until(lambda: "role:master" in leader.says("info", "replication"), "it to know")
    assert leader.says("get", "job").strip() == "one"
    assert leader.says("set", "job", "two").strip() == "OK"
    shutil.rmtree(first.folder)
    first.start()
    wait_until(lambda: "master_link_status:up" in first.says("info", "replication"), "it to follow")
    wait_until(lambda: first.says("get", "job").strip() == "two", "the newest value")
    wait_until(lambda: first.master() == leader.name, "its sentinel to know the leader")
