"""Fixtures of the contract tests: every store in turn."""

from __future__ import annotations

from tests.contract.store_worlds import redis_server, store, world

__all__ = ["redis_server", "store", "world"]
