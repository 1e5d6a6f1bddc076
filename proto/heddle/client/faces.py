"""The public classes of the client: ``Client`` blocks, ``AsyncClient`` is for asyncio."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, cast

import grpc

from heddle.client.calls import Calls, split_addresses
from heddle.client.credentials import Credentials
from heddle.client.operations import Operations
from heddle.client.wire import AsyncioWire, BlockingWire, each, finish
from heddle.v1.audit_pb2_grpc import AuditServiceStub
from heddle.v1.demand_pb2_grpc import DemandServiceStub
from heddle.v1.doctor_pb2_grpc import DoctorServiceStub
from heddle.v1.fabric_pb2_grpc import FabricServiceStub
from heddle.v1.overlay_pb2_grpc import OverlayServiceStub
from heddle.v1.placement_pb2_grpc import PlacementServiceStub
from heddle.v1.plan_pb2_grpc import PlanServiceStub

P = ParamSpec("P")
R = TypeVar("R")
TIMEOUT = 60.0


def _silent(_: str, __: str) -> None:
    """Ignore what is reported."""


class AsyncClient(Operations):
    """The API for asyncio programs; see ``Client``. Use it as ``async with``.

    The only differences: calls are awaited, and streams are iterated with ``async for``.
    """

    def __init__(
        self,
        addresses: str | Iterable[str] = "127.0.0.1:7400",
        *,
        fabric: str = "",
        credentials: Credentials | None = None,
        timeout: float = TIMEOUT,
        patience: float | None = None,
        note: Callable[[str, str], None] | None = None,
    ) -> None:
        calls = Calls(
            AsyncioWire(),
            split_addresses(addresses),
            credentials or Credentials(),
            timeout,
            math.inf if patience is None else patience,
            note or _silent,
        )
        super().__init__(calls, fabric)
        self.fabrics, self.jobs, self.demands = self._fabrics, self._jobs, self._demands
        self.plans, self.overlays, self.audit = self._plans, self._overlays, self._audit
        self.doctor = self._doctor

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _blocking(
    operation: Callable[Concatenate[Operations, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Client, P], R]:
    """Turn an operation into a method that returns when it is done."""

    def run(client: Client, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return finish(operation(client.operations, *args, **kwargs))

    return update_wrapper(run, operation)


def _iterating(
    operation: Callable[Concatenate[Operations, P], AsyncGenerator[R]],
) -> Callable[Concatenate[Client, P], Generator[R]]:
    """Turn a watch into a method that returns a plain iterator; closing that ends the stream."""

    def run(client: Client, /, *args: P.args, **kwargs: P.kwargs) -> Generator[R]:
        return each(operation(client.operations, *args, **kwargs))

    return update_wrapper(run, operation)


class _BlockingChannel:
    """Stands in for a channel in generated stubs, and makes calls that block."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def unary_unary(self, path: str, **how: Any) -> Callable[..., Any]:  # noqa: ANN401 - gRPC's
        call = self._calls.unary_unary(path, **how)
        return lambda request, timeout=None: finish(call(request, timeout))

    def stream_unary(self, path: str, **how: Any) -> Callable[..., Any]:  # noqa: ANN401 - gRPC's
        call = self._calls.stream_unary(path, **how)
        return lambda requests, timeout=None: finish(call(requests, timeout))

    def unary_stream(self, path: str, **how: Any) -> Callable[..., Any]:  # noqa: ANN401 - gRPC's
        call = self._calls.unary_stream(path, **how)
        return lambda request, timeout=None: each(call(request, timeout))


class Client:
    """The API of Heddle's controllers. Use it as ``with``; threads may share one client.

    ``fabrics``, ``jobs``, ``demands``, ``plans``, ``overlays``, ``audit`` and ``doctor`` are the
    services of ``heddle.v1``; each of their methods takes a request and ``timeout``. The methods
    below are for tasks that need more than one call. All raise ``HeddleError``.
    """

    def __init__(
        self,
        addresses: str | Iterable[str] = "127.0.0.1:7400",
        *,
        fabric: str = "",
        credentials: Credentials | None = None,
        timeout: float = TIMEOUT,
        patience: float | None = None,
        note: Callable[[str, str], None] | None = None,
    ) -> None:
        """Create a client; it connects with its first call.

        Args:
            addresses: host:port of every controller, in one text with commas or in several texts.
            fabric: Name of the fabric to use; empty if there is only one.
            credentials: Files for TLS, or a token.
            timeout: Most seconds a call may take in all.
            patience: How many of these seconds to look for a controller that answers. None means
                all of
                them, 0 means to try each address once.
            note: Called with a word and a text: "stale" if an answer may be outdated, "lost" if a
                watch
                broke and goes on.

        Raises:
            ValueError: An address has another form.
        """
        calls = Calls(
            BlockingWire(),
            split_addresses(addresses),
            credentials or Credentials(),
            timeout,
            math.inf if patience is None else patience,
            note or _silent,
        )
        self.operations = Operations(calls, fabric)
        channel = cast("grpc.Channel", _BlockingChannel(calls))
        self.fabrics = FabricServiceStub(channel)
        self.jobs = PlacementServiceStub(channel)
        self.demands = DemandServiceStub(channel)
        self.plans = PlanServiceStub(channel)
        self.overlays = OverlayServiceStub(channel)
        self.doctor = DoctorServiceStub(channel)
        self.audit = AuditServiceStub(channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    close = _blocking(Operations.close)
    fabric = _blocking(Operations.fabric)
    submit_job = _blocking(Operations.submit_job)
    replace_hosts = _blocking(Operations.replace_hosts)
    resize_job = _blocking(Operations.resize_job)
    correct_job = _blocking(Operations.correct_job)
    tell_drift = _blocking(Operations.tell_drift)
    suspend_job = _blocking(Operations.suspend_job)
    resume_job = _blocking(Operations.resume_job)
    get_job = _blocking(Operations.get_job)
    delete_job = _blocking(Operations.delete_job)
    delete_fabric = _blocking(Operations.delete_fabric)
    list_jobs = _blocking(Operations.list_jobs)
    order_ranks = _blocking(Operations.order_ranks)
    recommend_placement = _blocking(Operations.recommend_placement)
    reserve_placement = _blocking(Operations.reserve_placement)
    list_reservations = _blocking(Operations.list_reservations)
    release_placement = _blocking(Operations.release_placement)
    list_fabrics = _blocking(Operations.list_fabrics)
    list_links = _blocking(Operations.list_links)
    list_demand_sets = _blocking(Operations.list_demand_sets)
    list_demands = _blocking(Operations.list_demands)
    list_routes = _blocking(Operations.list_routes)
    list_job_fares = _blocking(Operations.list_job_fares)
    list_link_loads = _blocking(Operations.list_link_loads)
    list_plans = _blocking(Operations.list_plans)
    watch_jobs = _iterating(Operations.watch_jobs)
    watch_fabric = _iterating(Operations.watch_fabric)
    watch_plans = _iterating(Operations.watch_plans)
    watch_drain = _iterating(Operations.watch_drain)
    watch_rates = _iterating(Operations.watch_rates)
    wait_until = _blocking(Operations.wait_until)
    wait_until_gone = _blocking(Operations.wait_until_gone)
    wait_until_settled = _blocking(Operations.wait_until_settled)
