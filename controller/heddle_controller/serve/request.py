"""Who asks, under which id: what every changing call tells the store."""

from __future__ import annotations

from heddle_controller.reconcile.admission import check_request
from heddle_controller.reconcile.ports import Store
from heddle_controller.serve.interceptors.trace import current_request, name_request
from heddle_controller.serve.security.caller import current_caller
from heddle_controller.state.errors import Unavailable
from heddle_controller.state.records import Request


def request_of(request_id: str) -> Request:
    """The request of the call under way, for replay and for the record.

    Raises:
        InputError: when the id is too long to be kept.
    """
    request = Request(request_id, actor=str(current_caller()), call=current_request())
    check_request(request)
    if request_id:
        name_request(request_id)
    return request


async def version_without(store: Store, fabric: str) -> int:
    """A version of the intent in which something is gone that the call under way took away.

    0 where the store cannot be asked: what this replica knew last may be from before.
    """
    try:
        version = (await store.versions(fabric)).intent
    except Unavailable:
        return 0
    return version if store.stale_for() == 0 else 0
