"""Who asks, under which id: what every changing call tells the store."""

from __future__ import annotations

import structlog

from heddle_controller.reconcile.admission import check_request
from heddle_controller.reconcile.records import Request


def request_of(request_id: str) -> Request:
    """The request of the call under way, for replay and for the record.

    Raises:
        InputError: when the id is too long to be kept.
    """
    context = structlog.contextvars.get_contextvars()
    actor = str(context.get("client") or context.get("peer") or "")
    return check_request(Request(id=request_id, actor=actor))
