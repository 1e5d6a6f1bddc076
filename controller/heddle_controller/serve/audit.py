"""AuditService: lists the audit trail of the store; its newest mark also goes into the log.

Somebody who owns the store can forge a new chain, and the chain itself would not show it. So the
mark of its end is logged as it moves, and is kept wherever logs are kept. A chain that no longer
contains a logged mark (``heddle audit verify --head``) was changed.
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from grpc import aio
from typing_extensions import override

from heddle.v1 import audit_pb2 as pb
from heddle.v1.audit_pb2_grpc import AuditServiceServicer
from heddle_controller.model.errors import refuse
from heddle_controller.serve.codec import audit as codec
from heddle_controller.state.audit import Mark
from heddle_controller.state.errors import PortError
from heddle_controller.store.store import Store

log = structlog.stdlib.get_logger(__name__)

_Context = aio.ServicerContext[Any, Any]

MARK_SECONDS = 60.0
"""Least time between two marks in the log."""
_DEFAULT, _CEILING = 100, 1000
"""Records on a page by default, and at most. One record may take 8 KiB."""


class AuditService(AuditServiceServicer):
    """Reads the audit trail from the store; see audit.proto."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @override
    async def ListAuditRecords(
        self, request: pb.ListAuditRecordsRequest, context: _Context
    ) -> pb.ListAuditRecordsResponse:
        """List records in order of their numbers."""
        if request.page_size < 0:
            raise refuse("request", "page_size", "it is below 0: give none for the default")
        if request.after >= 1 << 63:
            raise refuse("request", "after", "it is too large for a record's number")
        limit = min(request.page_size or _DEFAULT, _CEILING)
        page = await self._store.audit(after=request.after, limit=limit)
        return pb.ListAuditRecordsResponse(
            records=[codec.audit_record_to_pb(record) for record in page.records],
            anchor=codec.mark_to_pb(page.anchor),
            head=codec.mark_to_pb(page.head),
        )


async def log_marks(store: Store, pause: float = MARK_SECONDS) -> None:
    """Log the mark of the trail's end now, and again after it has moved, until cancelled.

    Args:
        store: Has the audit trail.
        pause: Seconds between two looks.
    """
    told = Mark()
    while True:
        try:
            head = (await store.audit(after=told.number, limit=1)).head
        except PortError as error:
            log.debug("audit mark not read", why=str(error))
        else:
            if head != told:
                log.info("audit mark", mark=str(head))
            told = head
        await asyncio.sleep(pause)
