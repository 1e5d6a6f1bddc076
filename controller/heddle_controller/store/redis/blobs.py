"""Large values, in pieces, so that no single call takes a server or a connection for long.

A blob is written under a name of its own before the change that points at it, and lives
for some minutes only; the change makes it last. So one whose change was refused, or whose
writer died, goes by itself.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from heddle_controller.state.change import Blob
from heddle_controller.state.errors import Unusable
from heddle_controller.store.redis.link import Link
from heddle_controller.store.redis.scripts import Keys

PIECE = 256 * 1024
"""Bytes of one piece."""
UNCLAIMED_SECONDS = 600
_COUNT = b"count"


class Blobs:
    """Reads and writes them."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self.link = link
        self.keys = keys

    async def write(self, blob: Blob) -> None:
        """Bring a blob to the server, unless it is there whole. Raises ``Unavailable``."""
        key, body = self.keys.blob(blob.id), blob.body
        if body is None:
            return
        call = self.link.call
        if await call(lambda c: _hexists(c, key)):
            return
        pieces = [body[at : at + PIECE] for at in range(0, len(body), PIECE)]
        for row, piece in enumerate(pieces):
            values = {str(row): piece}
            await call(lambda c, v=values: c.hset(key, mapping=v))  # type: ignore[misc]
            if not row:
                await call(lambda c: c.expire(key, UNCLAIMED_SECONDS))
        values = {_COUNT.decode(): str(len(pieces)).encode()}
        await call(lambda c: c.hset(key, mapping=values))  # type: ignore[arg-type]

    async def read(self, identity: str) -> bytes | None:
        """A blob; None if it is there no more.

        Raises:
            Unavailable: the server is away.
            Unusable: a piece of it is missing.
        """
        key = self.keys.blob(identity)
        count = await self.link.call(lambda c: _hget(c, key, _COUNT))
        if count is None:
            return None
        pieces = await asyncio.gather(
            *(self.link.call(lambda c, r=row: _hget(c, key, r)) for row in range(int(count)))  # type: ignore[misc]
        )
        if None in pieces:
            if await self.link.call(lambda c: _hget(c, key, _COUNT)) is None:
                return None
            raise Unusable(f"store {self.link.name}: {key} lacks a piece; restore it from a backup")
        return b"".join(cast("list[bytes]", pieces))


async def _hexists(client: Any, key: str) -> bool:  # noqa: ANN401 - the library's own types are unions
    return bool(await client.hexists(key, _COUNT))


async def _hget(client: Any, key: str, field: bytes | int) -> bytes | None:  # noqa: ANN401 - as above
    value: bytes | None = await client.hget(key, field)
    return value
