"""Heddle's own programs in a lab: a controller in ``mgmt``, an agent in every switch."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from heddle_emulator.fleet.orders import Orders
from heddle_emulator.netns import mark, tools
from heddle_emulator.netns.errors import LabError
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.layout import MGMT

FABRIC = "fabrics/lab"
API_PORT = 7400
METRICS_PORT = 7401
BACK_DOOR_PORT = 7402
READY = "listening on"
START_SECONDS = 30.0
LAST_WORDS = 3
POLL_SECONDS = 0.02


class Programs:
    """The controller and the agents of one lab, by node; ``mgmt`` is the controller's."""

    def __init__(
        self,
        lab: Lab,
        *,
        controller: tuple[str, ...] = (),
        agents: tuple[str, ...] = (),
        orders: Orders | None = None,
    ) -> None:
        """Further options of ``heddle-controller serve`` and of every ``heddle-agent run``.

        With ``orders`` the controller fails as these say.
        """
        self.lab = lab
        self.api = f"{lab.layout.management(MGMT)}:{API_PORT}"
        """Where the controller listens, on the management network."""
        self._options, self._agent_options = controller, agents
        self._warm: subprocess.Popen[str] | None = None
        self.processes: dict[str, int] = {}
        self.orders = orders

    def start_controller(self) -> None:
        """Start the controller; returns at once."""
        host = self.lab.layout.management(MGMT)
        command = [
            *self._program(),
            "serve",
            f"--listen={self.api}",
            "--insecure",
            f"--metrics-host={host}",
            f"--metrics-port={METRICS_PORT}",
            f"--store=sqlite:///{self.lab.folder / 'heddle.sqlite3'}",
            *self._options,
        ]
        self.log_of(MGMT).unlink(missing_ok=True)
        space, log = self.lab.spaces[MGMT], self.log_of(MGMT)
        self.processes[MGMT] = tools.start_inside(space, command, log)

    def _program(self) -> list[str]:
        """The installed controller, or the same looking out for orders to fail."""
        if self.orders is None:
            return [str(Path(sys.executable).with_name("heddle-controller"))]
        return [sys.executable, "-m", "heddle_emulator.fleet.mortal", str(self.orders.folder)]

    def wait_ready(self) -> None:
        """Wait until the controller serves.

        Raises:
            LabError: it ended, or takes too long; with its last words.
        """
        deadline = time.monotonic() + START_SECONDS
        while READY not in self._log(MGMT):
            if not self.alive(MGMT):
                raise LabError(f"the controller ended: {self._words(MGMT)}")
            if time.monotonic() > deadline:
                raise LabError(f"the controller is not ready after {START_SECONDS:g} s")
            time.sleep(POLL_SECONDS)

    def warm_up(self) -> None:
        """Have the agents' code read, beside whatever else is going on."""
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
        """Start the agent of a switch.

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
        """What ``heddle-agent`` is told."""
        layout = self.lab.layout
        return [
            "run",
            f"--fabric={FABRIC}",
            f"--switch={switch}",
            f"--controller={self.api}",
            "--insecure",
            "--fib=linux",
            "--interfaces=alias",
            f"--back-door={layout.management(switch)}:{BACK_DOOR_PORT}",
            f"--state-file={self.lab.folder / f'{switch}.state'}",
            f"--metrics-host={layout.management(switch)}",
            f"--metrics-port={METRICS_PORT}",
            "--log-format=json",
            *self._agent_options,
        ]

    def alive(self, node: str) -> bool:
        """Whether the program of a node runs."""
        process = self.processes.get(node, 0)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process, os.WNOHANG)
        return process in mark.processes([self.lab.spaces[node]])

    def signal(self, node: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to the program of a node; nothing if it is gone."""
        if self.alive(node):
            os.kill(self.processes[node], number)

    def kill(self, node: str) -> None:
        """SIGKILL the program of a node, and wait until it is gone."""
        self.signal(node)
        while self.alive(node):
            time.sleep(POLL_SECONDS)

    def check(self) -> None:
        """Go on only if all that was started still runs.

        Raises:
            LabError: one has ended; with its last words.
        """
        for node in self.processes:
            if not self.alive(node):
                who = "the controller" if node == MGMT else f"the agent of {node}"
                raise LabError(f"{who} ended: {self._words(node)}")

    def close(self) -> None:
        """Start no more; what runs goes on."""
        if self._warm is not None:
            assert self._warm.stdin is not None
            assert self._warm.stdout is not None
            self._warm.stdin.close()
            self._warm.wait()
            self._warm.stdout.close()
            self._warm = None

    def log_of(self, node: str) -> Path:
        """Where a program writes."""
        name = "controller" if node == MGMT else node
        return self.lab.folder / f"{name}.log"

    def _words(self, node: str) -> str:
        lines = self._log(node).strip().splitlines()
        return " | ".join(lines[-LAST_WORDS:]) or "it said nothing"

    def _log(self, node: str) -> str:
        try:
            return self.log_of(node).read_text(errors="replace")
        except FileNotFoundError:
            return ""
