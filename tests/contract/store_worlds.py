"""The stores that the contract holds of: each a way to open one, and to open it again."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from heddle_controller.store.embedded import open_embedded
from heddle_controller.store.store import Store
from tests.support.redis_server import EVERY_SECOND, RedisServer, opened


class Ticking:
    """A clock whose every reading is one second later."""

    def __init__(self) -> None:
        self._seconds = 1_000.0

    def __call__(self) -> float:
        """Unix seconds, of a kind."""
        self._seconds += 1
        return self._seconds


class StoreWorld(Protocol):
    """Where one store lives; all that it keeps survives ``close`` and ``open``."""

    async def open(self) -> Store:
        """A store on what was kept; only one at a time."""
        ...


class EmbeddedWorld:
    """One SQLite file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store.db"
        self._now = Ticking()

    async def open(self) -> Store:
        """See ``StoreWorld``."""
        return await open_embedded(self.path, self._now)


class RedisWorld:
    """Some keys in a real redis-server that the tests of one process share."""

    def __init__(self, server: RedisServer) -> None:
        self.url = f"{server.url}?name={secrets.token_hex(4)}"
        self._now = Ticking()

    async def open(self) -> Store:
        """See ``StoreWorld``."""
        return await opened(self.url, now=self._now)


WORLDS = ("embedded", "redis")


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for all; it does not wait for its disk."""
    with RedisServer(tmp_path_factory.mktemp("redis"), *EVERY_SECOND) as server:
        yield server


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> StoreWorld:
    """Each kind of store in turn."""
    if request.param == "embedded":
        return EmbeddedWorld(tmp_path)
    return RedisWorld(request.getfixturevalue("redis_server"))


@pytest.fixture
async def store(world: StoreWorld) -> AsyncIterator[Store]:
    """An empty store of each kind."""
    opened = await world.open()
    yield opened
    await opened.close()
