"""The memory of request ids: the same request twice answers twice and writes once.

A request is known by its id and a fingerprint of all it asked for. The memory is
bounded by number; a client that repeats a request does so within seconds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import TypeVar

from heddle_controller.state.errors import RequestReused
from heddle_controller.state.records import Request

Answer = TypeVar("Answer")

KEPT = 100_000
"""Answers remembered, newest first."""


def _answered(connection: sqlite3.Connection, request: Request, print_: str) -> bytes | None:
    """The first answer to this request; None if it is new.

    Raises:
        RequestReused: the id stands for another request.
    """
    if not request.id:
        return None
    row = connection.execute(
        "SELECT fingerprint, answer FROM requests WHERE id = ?", (request.id,)
    ).fetchone()
    if row is None:
        return None
    if row[0] != print_:
        raise RequestReused(request.id)
    return bytes(row[1])


def _remember(connection: sqlite3.Connection, request: Request, print_: str, answer: bytes) -> None:
    """Keep the answer, in the transaction of the write that it speaks of."""
    if not request.id:
        return
    cursor = connection.execute(
        "INSERT INTO requests (id, fingerprint, answer) VALUES (?, ?, ?)",
        (request.id, print_, answer),
    )
    connection.execute("DELETE FROM requests WHERE number <= ?", ((cursor.lastrowid or 0) - KEPT,))


def once(
    connection: sqlite3.Connection,
    request: Request,
    print_: str,
    do: Callable[[], Answer],
    codec: tuple[Callable[[Answer], bytes], Callable[[bytes], Answer]],
) -> Answer:
    """What ``do`` returns, or what it returned when this request came first.

    ``codec`` turns an answer into bytes and back.

    Raises:
        RequestReused: the id stands for another request.
    """
    encode, decode = codec
    if (answer := _answered(connection, request, print_)) is not None:
        return decode(answer)
    result = do()
    _remember(connection, request, print_, encode(result))
    return result


def nothing(_: object) -> bytes:
    """The encoding of an answer that the request itself tells."""
    return b""
