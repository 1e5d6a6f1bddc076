"""The time limits for connecting to a Redis and for its answers."""

from __future__ import annotations

import pytest

from heddle_controller.store.redis.address import Files, parse_address
from heddle_controller.store.redis.link import connect


@pytest.mark.parametrize("url", ["redis://127.0.0.1:6379", "unix:///run/redis.sock"])
async def test_the_time_that_was_set_holds_for_both_over_each_kind_of_socket(url: str) -> None:
    """``--store-timeout-seconds`` limits connecting and answers. The library's 5 s never apply."""
    client = connect(parse_address(url), Files(), timeout=30.0)
    connection = client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
    assert (connection.socket_connect_timeout, connection.socket_timeout) == (30.0, 30.0)
    await client.aclose()
