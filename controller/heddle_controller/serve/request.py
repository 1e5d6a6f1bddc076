"""Who asks, under which id: what every changing call tells the store."""

from __future__ import annotations

from heddle_controller.reconcile.admission import check_request
from heddle_controller.reconcile.records import Request
from heddle_controller.serve.interceptors.trace import current_request
from heddle_controller.serve.security.caller import current_caller


def request_of(request_id: str) -> Request:
    """The request of the call under way, for replay and for the record.

    Raises:
        InputError: when the id is too long to be kept.
    """
    request = Request(request_id, actor=str(current_caller()), call=current_request())
    return check_request(request)
