"""Fields that many requests share: the request id of a change, and the page of a list.

A page token has the name of the collection, a stamp of its content (such as an etag or generation)
and the position. It is opaque to clients but has no secret: a forged token can only name another
position in a list that its bearer may read anyway.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Protocol

from heddle_controller.model.errors import refuse
from heddle_controller.serve.errors import aborted
from heddle_controller.serve.interceptors.around import current_request, name_request
from heddle_controller.serve.security.caller import current_caller
from heddle_controller.state.admission import check_request
from heddle_controller.state.errors import FabricDeleted, Unavailable
from heddle_controller.state.records import Request
from heddle_controller.store.store import Store


def request_of(request_id: str) -> Request:
    """Return the request of the current call, for replays and for the audit trail.

    Raises:
        InputError: the id is too long to be kept.
    """
    request = Request(request_id, actor=str(current_caller()), call=current_request())
    check_request(request)
    if request_id:
        name_request(request_id)
    return request


async def version_without(store: Store, fabric: str) -> int:
    """Return a version of the intent from which the current call's deletion is visible.

    It is 0 if the store cannot be reached, because the last known version may be older. The fabric
    may have been deleted since, above all if the call is a repeated one.
    """
    try:
        version = (await store.versions(fabric)).intent
    except FabricDeleted as gone:
        version = gone.intent
    except Unavailable:
        return 0
    return version if store.stale_for() == 0 else 0


@dataclass(frozen=True, slots=True)
class Page:
    """The part of a collection that a request asks for."""

    collection: str
    """Name of the list with its filter; a token is valid for this collection only."""
    size: int
    """Most items on the page."""
    stamp: str
    """Stamp of the content for which the token was made; empty on the first page."""
    after: str
    """Where to continue: after this name, or from this row; empty on the first page."""

    def row(self, stamp: str) -> int:
        """Return the first row of the page, if the content still has the stamp of the token.

        Raises:
            Refusal: ABORTED if the content has changed.
            InputError: the token does not name a row.
        """
        if not self.after:
            return 0
        if self.stamp != stamp:
            message = "what is listed has changed since the first page: list again from the start"
            raise aborted("PAGE_TOKEN_EXPIRED", message)
        if not (self.after.isascii() and self.after.isdecimal()) or len(self.after) > MAX_DIGITS:
            raise _malformed()
        return int(self.after)

    def token(self, after: object, stamp: str = "") -> str:
        """Return the token of the next page, which continues from ``after``."""
        content = json.dumps([self.collection, stamp, str(after)])
        return base64.urlsafe_b64encode(content.encode()).decode()


MAX_DIGITS = 12


class PagedRequest(Protocol):
    """A request for a page of a list."""

    page_size: int
    page_token: str


def page(collection: str, request: PagedRequest, *, default: int, ceiling: int) -> Page:
    """Return the page that a request asks for.

    Args:
        collection: Name of the list with its filter.
        request: The request.
        default: Size if the request gives none.
        ceiling: Largest size.

    Raises:
        InputError: the size is negative, or the token is malformed or of another collection.
    """
    size, token = request.page_size, request.page_token
    if size < 0:
        raise refuse("request", "page_size", f"it is {size}: give 0 for the default, or more")
    size = min(size or default, ceiling)
    if not token:
        return Page(collection, size, "", "")
    try:
        parts = json.loads(base64.urlsafe_b64decode(token.encode()))
    except (binascii.Error, ValueError, RecursionError):
        raise _malformed() from None
    match parts:
        case [str(of), str(stamp), str(after)] if of == collection and after:
            return Page(collection, size, stamp, after)
    raise _malformed()


def _malformed() -> Exception:
    reason = "it is not of this list: pass next_page_token of the page before, and the same filter"
    return refuse("request", "page_token", reason)
