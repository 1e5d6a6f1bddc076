"""Play trials on a Ray cluster, where each worker is an actor.

Ray is an extra of this distribution, ``heddle-emulator[ray]``, and is imported only when it is
needed. An actor takes two processors: one for the agents of its fabric, one for its controller. The
address ``local`` starts a cluster on this machine for the duration of the trials. That cluster has
no dashboard, sends no statistics, and keeps its files in a temporary folder.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from heddle.text import split_address
from heddle_controller.model.errors import refuse
from heddle_emulator.executor import ExecutorError, MakeWorker, R, T

CPUS = 2
LOCAL = "local"
_CLIENT = "ray://"
"""How addresses of Ray's client servers begin."""
_CONNECT_SECONDS = 10.0
_END_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class RayExecutor:
    """Plays trials on actors of a Ray cluster."""

    address: str
    """The cluster's address as ``ray.init`` takes it, or ``LOCAL`` to start one here."""
    workers: int = 0
    """Number of actors; 0 takes as many as the cluster has room for. If there is less room, the
    others play trials once there is room for them."""

    def map(self, make: MakeWorker[T, R], trials: Sequence[T]) -> Iterator[R]:
        """Implement ``Executor.map``.

        Raises:
            InputError: Ray is not installed.
            ExecutorError: there is no cluster, or a worker died or could not be set up.
        """
        ray = _ray()
        with ExitStack() as stack:
            try:
                self._connect(ray, stack)
                actors = self._actors(ray, make, len(trials))
                running: list[Any] = []
                stack.callback(_end, ray, actors, running)
                yield from _results(ray, actors, running, trials)
            except (ray.exceptions.RayError, ConnectionError) as error:
                cause = getattr(error, "cause", None) or error
                raise ExecutorError(" ".join(str(cause).split())) from error

    def _connect(self, ray: Any, stack: ExitStack) -> None:  # noqa: ANN401 - see _ray
        """Connect to the cluster, or start one."""
        local: dict[str, Any] = {}
        if self.address == LOCAL:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            folder = stack.enter_context(
                TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
            )
            local = {
                "include_dashboard": False,
                "_node_ip_address": "127.0.0.1",
                "_temp_dir": folder,
            }
        self._check_listens()
        stack.callback(ray.shutdown)
        handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=self.address, log_to_driver=False, **local)
        except Exception as error:  # Ray raises no narrower class where a node takes too long
            what = "starts on this machine" if local else f"is reached at {self.address}"
            raise ExecutorError(f"no Ray cluster {what}: {' '.join(str(error).split())}") from error
        finally:
            if signal.getsignal(signal.SIGTERM) is not handler:  # Ray ends the process by its own
                signal.signal(signal.SIGTERM, handler)

    def _check_listens(self) -> None:
        """Raise ``ExecutorError`` if nothing listens at an address: Ray would try for minutes."""
        try:
            host, port = split_address(self.address.removeprefix(_CLIENT))
        except ValueError:
            return  # a word such as "auto", which Ray explains
        try:
            socket.create_connection((host, port), timeout=_CONNECT_SECONDS).close()
        except OSError as error:
            why = error.strerror or str(error)
            raise ExecutorError(f"no Ray cluster is reached at {self.address}: {why}") from error

    def _actors(self, ray: Any, make: MakeWorker[T, R], trials: int) -> list[Any]:  # noqa: ANN401
        """Start as many actors as there is room and work for, at least one."""
        nodes = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
        cpus = min(CPUS, max(nodes, default=CPUS))
        room = sum(int(node // cpus) for node in nodes)
        # A second thread, so that an actor can be told to close during a trial.
        actor = ray.remote(num_cpus=cpus, max_concurrency=2)(_Actor)
        count = min(self.workers or room or 1, trials)
        return [actor.remote(ray.put(make)) for _ in range(count)]


class _Actor:
    """A worker as a Ray actor."""

    def __init__(self, make: MakeWorker[Any, Any]) -> None:
        self._worker = make()

    def run(self, trial: object) -> object:
        """Play one trial."""
        return self._worker.run(trial)

    def close(self) -> None:
        """End the worker."""
        self._worker.close()


def _results(
    ray: Any,  # noqa: ANN401 - see _ray
    actors: list[Any],
    running: list[Any],
    trials: Sequence[Any],
) -> Iterator[Any]:
    """Yield results, and add actors to ``running`` as they start.

    Only actors that run get trials: one that the cluster has no room for may never start.
    """
    starting = {actor.__ray_ready__.remote(): actor for actor in actors}
    waiting, idle, busy = deque(trials), deque[Any](), dict[Any, Any]()
    while waiting or busy:
        while waiting and idle:
            actor = idle.popleft()
            busy[actor.run.remote(waiting.popleft())] = actor
        done, _ = ray.wait([*busy, *starting])
        for reference in done:
            result = ray.get(reference)
            if reference in starting:
                running.append(starting[reference])
                idle.append(starting.pop(reference))
            else:
                idle.append(busy.pop(reference))
                yield result


def _end(ray: Any, actors: list[Any], running: list[Any]) -> None:  # noqa: ANN401 - see _ray
    """Close the workers that run, for which they have a limited time, and then end all actors."""
    closing = [actor.close.remote() for actor in running]
    if closing:
        ray.wait(closing, num_returns=len(closing), timeout=_END_SECONDS)
    for actor in actors:
        ray.kill(actor)


def _ray() -> Any:  # noqa: ANN401 - linters and type checkers need not have Ray
    try:
        importlib.import_module("ray.exceptions")
        return importlib.import_module("ray")
    except ImportError as error:
        cure = "is not installed; pip install 'heddle-emulator[ray]', or leave --ray out"
        raise refuse("campaign", "ray", cure) from error
