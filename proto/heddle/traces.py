"""Spans for a collector of OpenTelemetry: what happened, told after it is over.

Of the extra ``traces``; who does not ask for spans imports nothing of this. Who tells has done with
it at once: a bounded queue keeps what is told, a thread of its own sends it, and what finds no room
while the collector is away is dropped.

Ids follow from what a span is of, so that processes that know nothing of each other tell parts of
one trace: a request's from its id, which is that of the logs and of the audit trail; a plan's from
its fabric, epoch and generation, which agents are told with each push.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

KEPT = 2048
"""Spans that wait."""
EACH = 512
"""Of these, sent at once."""
PAUSE_MILLISECONDS = 1000
SEND_SECONDS = 5.0
CLOSE_SECONDS = 2.0
"""What waits at the end may take so long to be sent."""
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Root:
    """The root span of a trace, above all its others."""

    context: SpanContext

    @classmethod
    def of_request(cls, request: str) -> Root:
        """The root of a request's trace, by its id: the trace's own where it looks like one."""
        digest = hashlib.sha256(request.encode()).digest()
        trace = bytes.fromhex(request) if _TRACE_ID.fullmatch(request) else digest[:16]
        return cls(_context(trace, digest[16:24]))

    @classmethod
    def of_plan(cls, fabric: str, epoch: int, generation: int) -> Root:
        """The root of a plan's trace into the switches; ``fabric`` as in "fabrics/f1"."""
        digest = hashlib.sha256(f"{fabric}/plans/{epoch}.{generation}".encode()).digest()
        return cls(_context(digest[:16], digest[16:24]))


@dataclass(frozen=True, slots=True)
class Happened:
    """One thing, from begin to end in Unix seconds."""

    name: str
    began: float
    ended: float
    attributes: Mapping[str, Value]
    failed: str = ""
    """Why it failed; empty where it did not."""


class Spans:
    """The spans of one process."""

    def __init__(self, endpoint: str, service: str, instance: str) -> None:
        """``endpoint`` is a URL, as "http://127.0.0.1:4317"; "https" speaks TLS.

        ``OTEL_EXPORTER_OTLP_CERTIFICATE`` and ``OTEL_EXPORTER_OTLP_HEADERS`` are heeded, as
        everywhere.
        """
        # Whoever sends says in the log what it could not send: below errors, again and again.
        logging.getLogger("opentelemetry").setLevel(logging.ERROR)
        self._resource = Resource(
            {"service.name": service, "service.instance.id": instance, "process.pid": os.getpid()}
        )
        self._queue = BatchSpanProcessor(
            OTLPSpanExporter(endpoint=endpoint, timeout=SEND_SECONDS),
            max_queue_size=KEPT,
            schedule_delay_millis=PAUSE_MILLISECONDS,
            max_export_batch_size=EACH,
        )

    def root(self, root: Root, what: Happened, *, serves: bool = False) -> None:
        """Tell the uppermost span of a trace; ``serves`` where it answers somebody."""
        kind = SpanKind.SERVER if serves else SpanKind.INTERNAL
        self._tell(what, root.context, None, kind)

    def below(self, root: Root, what: Happened, *, see: Root | None = None) -> None:
        """Tell a span below that; ``see`` is another trace that it is about as well."""
        context = _context(root.context.trace_id.to_bytes(16, "big"), os.urandom(8))
        links = (Link(see.context),) if see else ()
        self._tell(what, context, root.context, SpanKind.INTERNAL, links)

    def _tell(
        self,
        what: Happened,
        context: SpanContext,
        parent: SpanContext | None,
        kind: SpanKind,
        links: tuple[Link, ...] = (),
    ) -> None:
        status = Status(StatusCode.ERROR, what.failed) if what.failed else Status()
        self._queue.on_end(
            ReadableSpan(
                what.name,
                context,
                parent,
                self._resource,
                what.attributes,
                links=links,
                kind=kind,
                status=status,
                start_time=round(what.began * 1e9),
                end_time=round(max(what.began, what.ended) * 1e9),
            )
        )

    def close(self) -> None:
        """Send what waits, if that can be done soon."""
        ending = threading.Thread(target=self._queue.shutdown, daemon=True)
        ending.start()
        ending.join(CLOSE_SECONDS)


def _context(trace: bytes, span: bytes) -> SpanContext:
    numbers = int.from_bytes(trace, "big"), int.from_bytes(span, "big")
    return SpanContext(*numbers, is_remote=False, trace_flags=_SAMPLED)
