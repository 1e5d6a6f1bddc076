"""The connection of a command: channel, deadline, and the fabric it speaks of."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from heddle.text import split_address
from heddle.v1 import fabric_pb2
from heddle.v1.audit_pb2_grpc import AuditServiceStub
from heddle.v1.demand_pb2_grpc import DemandServiceStub
from heddle.v1.fabric_pb2_grpc import FabricServiceStub
from heddle.v1.overlay_pb2_grpc import OverlayServiceStub
from heddle.v1.placement_pb2_grpc import PlacementServiceStub
from heddle.v1.plan_pb2_grpc import PlanServiceStub
from heddle_controller.cli.connection_errors import check_files, check_token, unreachable
from heddle_controller.cli.failure import Failure, calling
from heddle_controller.cli.output import echo
from heddle_controller.model.errors import refuse
from heddle_controller.serve.codec import names
from heddle_controller.serve.interceptors.freshness import AGE, STALE

Answer = TypeVar("Answer")

if TYPE_CHECKING:  # gRPC's own classes cannot be subscripted
    Asked = grpc.UnaryUnaryMultiCallable[Any, Answer] | grpc.StreamUnaryMultiCallable[Any, Answer]

MAX_MESSAGE_BYTES = 64 << 20
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # else a ping under way has a minute
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_reconnect_backoff_ms", 1000),  # who waits for a restart sees its end
]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What a client shows, and whom it trusts."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    token: Path | None = None

    @property
    def secure(self) -> bool:
        """Whether TLS is asked for."""
        return bool(self.ca or self.cert or self.key)

    def channel(self) -> grpc.ChannelCredentials | None:
        """TLS, if it is asked for.

        Raises:
            InputError: a file cannot be used.
        """
        if not self.secure:
            return None
        check_files(self.ca, self.cert, self.key)
        return grpc.ssl_channel_credentials(*map(_content, (self.ca, self.key, self.cert)))

    def bearer(self) -> tuple[tuple[str, str], ...]:
        """What every call brings along.

        Raises:
            Failure: the file cannot be read, or is no token's.
        """
        if self.token is None:
            return ()
        text = (_content(self.token) or b"").decode(errors="replace").strip()
        if not text.isascii() or not text.isprintable() or " " in text or not text:
            raise Failure(f"{self.token}: holds no token: give what 'heddle token new' printed")
        return (("authorization", f"Bearer {text}"),)


def _content(path: Path | None) -> bytes | None:
    try:
        return path.read_bytes() if path else None
    except OSError as error:
        raise Failure(f"{error.filename}: {error.strerror}: give a readable file") from None


@dataclass(frozen=True)
class Client:
    """What the options before the command say."""

    server: str
    timeout: float
    """Seconds a call may take."""
    json: bool
    named_fabric: str | None
    files: TlsFiles = TlsFiles()
    told: list[str] = field(default_factory=list)
    """Notes that were made, which are not made again."""

    @cached_property
    def channel(self) -> grpc.Channel:
        """The channel; gRPC connects with the first call."""
        try:
            split_address(self.server)
        except ValueError as error:
            raise refuse("--server", "", str(error)) from None
        credentials = self.files.channel()
        if credentials is None:
            return grpc.insecure_channel(self.server, OPTIONS)
        return grpc.secure_channel(self.server, credentials, OPTIONS)

    @cached_property
    def bearer(self) -> tuple[tuple[str, str], ...]:
        """Metadata of every call; a token read once.

        Raises:
            InputError: it would go to another host in plain text.
        """
        if self.files.token is not None:
            check_token(self.server, secure=self.files.secure)
        return self.files.bearer()

    @cached_property
    def fabrics(self) -> FabricServiceStub:
        """FabricService."""
        return FabricServiceStub(self.channel)

    @cached_property
    def jobs(self) -> PlacementServiceStub:
        """PlacementService."""
        return PlacementServiceStub(self.channel)

    @cached_property
    def demands(self) -> DemandServiceStub:
        """DemandService."""
        return DemandServiceStub(self.channel)

    @cached_property
    def overlays(self) -> OverlayServiceStub:
        """OverlayService."""
        return OverlayServiceStub(self.channel)

    @cached_property
    def audit(self) -> AuditServiceStub:
        """AuditService."""
        return AuditServiceStub(self.channel)

    @cached_property
    def plans(self) -> PlanServiceStub:
        """PlanService."""
        return PlanServiceStub(self.channel)

    def _unreached(self, text: str) -> str:
        """What to say of a controller that was not reached, given gRPC's words."""
        known = self.files.cert is not None
        return unreachable(self.server, text, secure=self.files.secure, known=known)

    def call(self, method: Asked[Answer], request: Any) -> Answer:  # noqa: ANN401 - what is asked
        """One answer to one question, or to a stream of questions.

        Says so on standard error where the answer, or the refusal, is not of now, once a command.

        Raises:
            Failure: the call ended in anything but an answer.
        """
        with calling(self.server, self._unreached):
            try:
                answer, call = method.with_call(request, timeout=self.timeout, metadata=self.bearer)
            except grpc.RpcError as error:
                self._tell_age(error.trailing_metadata())
                raise
        self._tell_age(call.trailing_metadata())
        return answer

    def _tell_age(self, trailing: Iterable[Any] | None) -> None:
        marks = dict(trailing or ())
        if marks.get(STALE) != "true" or self.told:
            return
        self.told.append(STALE)
        age = str(marks.get(AGE, "some"))
        echo(f"note: the controller's store is away: this is of {age} s ago", err=True)

    def watch(
        self, method: Callable[..., Iterator[Answer]], request: object, limit: float | None = None
    ) -> Iterator[Answer]:
        """Answers as they come, for at most ``limit`` seconds."""
        with calling(self.server, self._unreached):
            try:
                yield from method(request, timeout=limit, metadata=self.bearer)
            except grpc.RpcError as error:
                if limit is None or error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise

    @cached_property
    def fabric(self) -> str:
        """Name of the fabric meant: the one named, or the only one there is.

        Raises:
            Failure: none was named and there is none, or there are several.
        """
        if self.named_fabric:
            return names.fabric_name(self.named_fabric)
        answer = self.call(self.fabrics.ListFabrics, fabric_pb2.ListFabricsRequest())
        found = [fabric.name for fabric in answer.fabrics]
        if len(found) == 1:
            return found[0]
        if not found:
            cure = "import one with 'heddle fabric import FILE'"
            raise Failure(f"the controller at {self.server} has no fabric: {cure}")
        told = ", ".join(name.rpartition("/")[2] for name in found)
        raise Failure(f"there are several fabrics ({told}): say which with --fabric")

    @property
    def plan(self) -> str:
        """Name of the fabric's plan."""
        return f"{self.fabric}/plan"


def request_id() -> str:
    """An id for a changing call, so that a repeated one is not done twice."""
    return uuid.uuid4().hex
