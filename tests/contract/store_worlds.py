"""The stores that must keep the contract, each with a way to open and reopen it."""

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
    """A clock that moves on by one second at every reading."""

    def __init__(self) -> None:
        self._seconds = 1_000.0

    def __call__(self) -> float:
        """Seconds, as if Unix time."""
        self._seconds += 1
        return self._seconds


class StoreWorld(Protocol):
    """The place of one store; what is stored survives closing and opening it again."""

    async def open(self) -> Store:
        """Open a store on what was stored. Only one may be open at a time."""
        ...


class EmbeddedWorld:
    """One SQLite file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store.db"
        self._now = Ticking()

    async def open(self) -> Store:
        """Implement ``StoreWorld.open``."""
        return await open_embedded(self.path, self._now)


class RedisWorld:
    """Keys in a real redis-server that all tests of one process share."""

    def __init__(self, server: RedisServer) -> None:
        self.url = f"{server.url}?name={secrets.token_hex(4)}"
        self._now = Ticking()

    async def open(self) -> Store:
        """Implement ``StoreWorld.open``."""
        return await opened(self.url, now=self._now)


WORLDS = ("embedded", "redis")


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One Redis server for all tests, which does not wait for its disk."""
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
