"""Heddle's own programs in a lab: controllers in ``mgmt``, and an agent in every switch.

Each replica of the controller listens on its own ports. A single one keeps its state in a file.
Several share a Redis, which also runs in ``mgmt`` and ends with the lab. The leader is read from
the logs, because asking the controllers could change what a drill observes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from heddle_emulator.fleet.orders import Orders
from heddle_emulator.netns import LabError, mark, tools
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.layout import MGMT

API_PORT = 7400
METRICS_PORT = 7401
NEXT_PORT = 10
"""Difference between the ports of two successive replicas."""
LEADING = '"event": "leading"'
"""Part of the log line of a replica that begins to lead."""
STORE_SECONDS = 60.0
_POLL_SECONDS = 0.02


def replica_names(count: int) -> tuple[str, ...]:
    """Return the names of replicas. The first is called ``mgmt``; no node has the other names."""
    return (MGMT, *(f"{MGMT}#{number}" for number in range(2, count + 1)))


def _number(replica: str) -> int:
    """Return the number of a replica, from 0."""
    return int(replica.partition("#")[2] or 1) - 1


def replica_ports(replica: str) -> tuple[int, int]:
    """Return the ports of a replica's API and of its metrics."""
    further = NEXT_PORT * _number(replica)
    return API_PORT + further, METRICS_PORT + further


def replica_log(replica: str) -> str:
    """Return the file name of a replica's log."""
    return "controller.log" if replica == MGMT else f"controller-{_number(replica) + 1}.log"


def last_leader(logs: Iterable[tuple[str, Path]]) -> str:
    """Return the replica that began to lead last; "" if none has led."""
    told = ((_epoch(log), replica) for replica, log in logs)
    epoch, replica = max(told, default=(0, ""))
    return replica if epoch else ""


def _epoch(log: Path) -> int:
    found = 0
    with contextlib.suppress(OSError):
        for line in log.read_text(errors="replace").splitlines():
            if LEADING in line:
                with contextlib.suppress(ValueError, KeyError):
                    found = max(found, int(json.loads(line)["epoch"]))
    return found


class SharedStore:
    """A Redis for replicas. It is durable to the second, and listens on a socket of the lab."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._socket = lab.folder / "redis.sock"

    @property
    def url(self) -> str:
        """Address of the store for the option ``--store``."""
        return f"unix://{self._socket}"

    def start(self) -> None:
        """Start the Redis, and wait until it answers.

        Raises:
            LabError: it is not installed, or does not answer in time.
        """
        program = shutil.which("redis-server")
        if program is None:
            raise LabError("several controllers need a Redis: apt-get install redis-server")
        folder = self._lab.folder / "redis"
        folder.mkdir()
        command = [
            program,
            *("--port", "0", "--unixsocket", str(self._socket), "--dir", str(folder)),
            *("--save", "", "--appendonly", "yes", "--appendfsync", "everysec"),
        ]
        log = self._lab.folder / "redis.log"
        tools.start_inside(self._lab.spaces[MGMT], command, log)
        deadline = time.monotonic() + STORE_SECONDS
        while not self._answers():
            if time.monotonic() > deadline:
                words = log.read_text(errors="replace").strip().splitlines()[-3:]
                raise LabError(f"redis-server does not answer: {' | '.join(words)}")
            time.sleep(_POLL_SECONDS)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
            connection.settimeout(STORE_SECONDS)
            connection.connect(str(self._socket))
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
        return False


FABRIC = "fabrics/lab"
PEER_NOTICE_PORT = 7402
_READY = "listening on"
_START_SECONDS = 120.0
"""Ends what hangs, and nothing that a busy machine only slows down."""
LAST_WORDS = 3


class Programs:
    """The controllers and agents of one lab. They are named by replica and by switch."""

    def __init__(
        self,
        lab: Lab,
        *,
        controller: tuple[str, ...] = (),
        agents: tuple[str, ...] = (),
        orders: Orders | None = None,
        controllers: int = 1,
    ) -> None:
        """Prepare the programs of a lab.

        Args:
            lab: The lab.
            controller: More options of ``heddle-controller serve``.
            agents: More options of every ``heddle-agent run``.
            orders: Faults that the controllers obey; None runs the installed controller.
            controllers: Number of controllers.
        """
        self.lab = lab
        self.replicas = replica_names(controllers)
        host = lab.layout.management(MGMT)
        self.doors = tuple((host, replica_ports(one)[0]) for one in self.replicas)
        """Host and port of each controller on the management network."""
        self.api = ",".join(f"{host}:{port}" for host, port in self.doors)
        """The addresses of ``doors`` in the form that agents take."""
        self._options, self._agent_options = controller, agents
        self._warm: subprocess.Popen[str] | None = None
        self.processes: dict[str, int] = {}
        """Process ids by replica or switch."""
        self.orders = orders

    def start_controllers(self) -> None:
        """Start the shared store if there is one, wait for it, and start all controllers."""
        if len(self.replicas) > 1:
            SharedStore(self.lab).start()
        for replica in self.replicas:
            self.start_controller(replica)

    def start_controller(self, replica: str = MGMT) -> None:
        """Start a controller without waiting for it."""
        host = self.lab.layout.management(MGMT)
        port, metrics_port = replica_ports(replica)
        command = [
            *self._program(),
            "serve",
            f"--listen={host}:{port}",
            "--insecure",
            f"--metrics-host={host}",
            f"--metrics-port={metrics_port}",
            f"--store={self._store}",
            f"--controller-id={self.log_of(replica).stem}",
            *self._options,
        ]
        self.log_of(replica).unlink(missing_ok=True)
        space, log = self.lab.spaces[MGMT], self.log_of(replica)
        self.processes[replica] = tools.start_inside(space, command, log)

    @property
    def _store(self) -> str:
        if len(self.replicas) > 1:
            return SharedStore(self.lab).url
        return f"sqlite:///{self.lab.folder / 'heddle.sqlite3'}"

    @property
    def leader(self) -> str:
        """The controller that led last, even if it has died; the first if none ever led."""
        told = [(replica, self.log_of(replica)) for replica in self.replicas]
        return last_leader(told) or MGMT

    def revive(self) -> list[str]:
        """Start each controller that does not run, wait until all serve, and return those started.

        Raises:
            LabError: a controller ended, with its last log lines, or took too long.
        """
        dead = [replica for replica in self.replicas if not self.alive(replica)]
        for replica in dead:
            self.start_controller(replica)
        self.wait_ready()
        return dead

    def _program(self) -> list[str]:
        """Return the command of the installed controller, or of one that obeys the orders."""
        if self.orders is None:
            return [str(Path(sys.executable).with_name("heddle-controller"))]
        return list(self.orders.program)

    def wait_ready(self) -> None:
        """Wait until every controller serves.

        Raises:
            LabError: a controller ended, with its last log lines, or took too long.
        """
        deadline = time.monotonic() + _START_SECONDS
        for replica in self.replicas:
            while _READY not in self._log(replica):
                if not self.alive(replica):
                    raise LabError(f"the controller ended: {self._words(replica)}")
                if time.monotonic() > deadline:
                    raise LabError(f"the controller is not ready after {_START_SECONDS:g} s")
                time.sleep(_POLL_SECONDS)

    def warm_up(self) -> None:
        """Start to load the agents' code in the background, if that has not begun."""
        if self._warm is None:
            with self.log_of("warm").open("ab") as log:
                self._warm = subprocess.Popen(
                    [sys.executable, "-m", "heddle_emulator.netns.warm", self.lab.spaces[MGMT]],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    start_new_session=True,
                )

    def start_agent(self, switch: str) -> None:
        """Start the agent of a switch, and wait until its process is in the switch's namespace.

        Raises:
            LabError: it cannot be started.
        """
        self.warm_up()
        warm = self._warm
        assert warm is not None
        assert warm.stdin is not None
        assert warm.stdout is not None
        told = {
            "name": f"agent {switch}",
            "space": self.lab.spaces[switch],
            "log": str(self.log_of(switch)),
            "env": {},
            "arguments": self.agent_arguments(switch),
        }
        with contextlib.suppress(BrokenPipeError):
            warm.stdin.write(json.dumps(told) + "\n")
            warm.stdin.flush()
        answer = warm.stdout.readline().strip()
        if not answer:
            raise LabError(f"agents cannot be started: {self._words('warm')}")
        self.processes[switch] = int(answer)

    def start_agents(self) -> None:
        """Start the agents of all switches."""
        for switch in self.lab.layout.switches:
            self.start_agent(switch)

    def agent_arguments(self, switch: str) -> list[str]:
        """Return the arguments of ``heddle-agent`` for a switch."""
        layout = self.lab.layout
        return [
            "run",
            f"--fabric={FABRIC}",
            f"--switch={switch}",
            f"--controller={self.api}",
            "--insecure",
            "--fib=linux",
            "--interfaces=alias",
            f"--peer-notices={layout.management(switch)}:{PEER_NOTICE_PORT}",
            f"--state-file={self.lab.folder / f'{switch}.state'}",
            f"--metrics-host={layout.management(switch)}",
            f"--metrics-port={METRICS_PORT}",
            "--log-format=json",
            *self._agent_options,
        ]

    def alive(self, node: str) -> bool:
        """Return whether the program of a node runs."""
        process = self.processes.get(node, 0)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process, os.WNOHANG)
        return process in mark.processes([self.lab.spaces[self._home(node)]])

    def _home(self, node: str) -> str:
        """Return the node whose namespace a program is in."""
        return MGMT if node in self.replicas else node

    def signal(self, node: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the program of a node, if it runs."""
        if self.alive(node):
            os.kill(self.processes[node], number)

    def kill(self, node: str) -> None:
        """Kill the program of a node with SIGKILL, and wait until it is gone."""
        self.signal(node)
        while self.alive(node):
            time.sleep(_POLL_SECONDS)

    def check(self) -> None:
        """Check that all programs that were started still run.

        Raises:
            LabError: a program has ended. The message has its last log lines.
        """
        for node in self.processes:
            if not self.alive(node):
                who = "the controller" if node in self.replicas else f"the agent of {node}"
                raise LabError(f"{who} ended: {self._words(node)}")

    def close(self) -> None:
        """End the process that starts agents. Programs that run continue."""
        if self._warm is not None:
            assert self._warm.stdin is not None
            assert self._warm.stdout is not None
            self._warm.stdin.close()
            self._warm.wait()
            self._warm.stdout.close()
            self._warm = None

    def log_of(self, node: str) -> Path:
        """Return the log file of a program."""
        name = replica_log(node) if node in self.replicas else f"{node}.log"
        return self.lab.folder / name

    def _words(self, node: str) -> str:
        lines = self._log(node).strip().splitlines()
        return " | ".join(lines[-LAST_WORDS:]) or "it said nothing"

    def _log(self, node: str) -> str:
        try:
            return self.log_of(node).read_text(errors="replace")
        except FileNotFoundError:
            return ""
