"""AuditService: the audit trail, page by page, as the store keeps it."""

from __future__ import annotations

from typing import Any

from grpc import aio
from typing_extensions import override

from heddle.v1 import audit_pb2 as pb
from heddle.v1.audit_pb2_grpc import AuditServiceServicer
from heddle_controller.model.errors import refuse
from heddle_controller.reconcile.audit import AuditStore
from heddle_controller.serve.codec import audit as codec

Context = aio.ServicerContext[Any, Any]

DEFAULT, CEILING = 100, 1000
"""Records of a page. One may take 8 KiB."""


class AuditService(AuditServiceServicer):
    """Reads from the store; see audit.proto."""

    def __init__(self, store: AuditStore) -> None:
        self._store = store

    @override
    async def ListAuditRecords(
        self, request: pb.ListAuditRecordsRequest, context: Context
    ) -> pb.ListAuditRecordsResponse:
        """By number."""
        if request.page_size < 0:
            raise refuse("request", "page_size", "it is below 0: give none for the default")
        if request.after >= 1 << 63:
            raise refuse("request", "after", "it is too large for a record's number")
        limit = min(request.page_size or DEFAULT, CEILING)
        page = await self._store.audit(after=request.after, limit=limit)
        return pb.ListAuditRecordsResponse(
            records=[codec.record_to_pb(record) for record in page.records],
            anchor=codec.mark_to_pb(page.anchor),
            head=codec.mark_to_pb(page.head),
        )
