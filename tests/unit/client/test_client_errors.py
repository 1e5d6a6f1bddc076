"""The exceptions for calls that fail, as people read them."""

from __future__ import annotations

import grpc
import pytest

from heddle.client import Credentials, Unreachable
from heddle.client.errors import error_of


@pytest.mark.parametrize(
    ("code", "text", "why"),
    [
        (grpc.StatusCode.CANCELLED, "CANCELLED", "it ended the call"),
        (grpc.StatusCode.CANCELLED, "", "it ended the call"),
        (grpc.StatusCode.UNAVAILABLE, "connect: Connection refused", "Connection refused"),
    ],
)
def test_a_controller_that_went_away_is_told_in_words(
    code: grpc.StatusCode, text: str, why: str
) -> None:
    """A controller that stops while it answers is out of reach; gRPC's name of a code is not told.

    If gRPC tells a cause, the message has it.
    """
    call = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), text)
    error = error_of(call, "here:1", Credentials(), reached=True)  # type: ignore[arg-type] # as read
    assert isinstance(error, Unreachable)
    assert str(error) == f"cannot reach the controller at here:1 ({why})"
