"""Spans for an OpenTelemetry collector. A span is reported after it has ended.

This needs the extra ``traces``; a program that reports no spans does not import this module.
Reporting a span never blocks: spans wait in a bounded queue, a thread sends them, and spans are
dropped when the queue is full because the collector is away.

Ids are derived from what a span is about, so processes that know nothing of each other contribute
to one trace. A request's trace id comes from its request id, which also appears in the logs and in
the audit trail. A plan's comes from its fabric, epoch and generation, which agents receive with
each push.
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
"""Spans that may wait in the queue."""
EACH = 512
"""Spans that are sent at once."""
PAUSE_MILLISECONDS = 1000
SEND_SECONDS = 5.0
CLOSE_SECONDS = 2.0
"""How long ``close`` waits for the remaining spans to be sent."""
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Root:
    """The root span of a trace, the parent of all its other spans."""

    context: SpanContext

    @classmethod
    def of_request(cls, request: str) -> Root:
        """Return the root of a request's trace; a request id of the right form is its trace id."""
        digest = hashlib.sha256(request.encode()).digest()
        trace = bytes.fromhex(request) if _TRACE_ID.fullmatch(request) else digest[:16]
        return cls(_context(trace, digest[16:24]))

    @classmethod
    def of_plan(cls, fabric: str, epoch: int, generation: int) -> Root:
        """Return the root of a plan's trace into the switches; ``fabric`` is as in "fabrics/f1"."""
        digest = hashlib.sha256(f"{fabric}/plans/{epoch}.{generation}".encode()).digest()
        return cls(_context(digest[:16], digest[16:24]))


@dataclass(frozen=True, slots=True)
class Happened:
    """Something that happened, with begin and end in Unix seconds."""

    name: str
    began: float
    ended: float
    attributes: Mapping[str, Value]
    failed: str = ""
    """Why it failed; empty if it did not."""


class Spans:
    """Reports the spans of one process."""

    def __init__(self, endpoint: str, service: str, instance: str) -> None:
        """Create a reporter; ``endpoint`` is a URL like "http://127.0.0.1:4317" ("https" for TLS).

        ``OTEL_EXPORTER_OTLP_CERTIFICATE`` and ``OTEL_EXPORTER_OTLP_HEADERS`` have their usual
        effect.
        """
        # The exporter warns again and again about what it could not send: show only its errors.
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
        """Report the root span of a trace; ``serves`` if it answers a caller."""
        kind = SpanKind.SERVER if serves else SpanKind.INTERNAL
        self._tell(what, root.context, None, kind)

    def below(self, root: Root, what: Happened, *, see: Root | None = None) -> None:
        """Report a child span of the root; ``see`` is another trace that the span is also about."""
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
        """Send the waiting spans, but wait at most ``CLOSE_SECONDS`` for that."""
        ending = threading.Thread(target=self._queue.shutdown, daemon=True)
        ending.start()
        ending.join(CLOSE_SECONDS)


def _context(trace: bytes, span: bytes) -> SpanContext:
    numbers = int.from_bytes(trace, "big"), int.from_bytes(span, "big")
    return SpanContext(*numbers, is_remote=False, trace_flags=_SAMPLED)
