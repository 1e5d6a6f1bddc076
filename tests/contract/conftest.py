"""Fixtures of the contract tests: every store in turn."""

from __future__ import annotations

from tests.contract.store_worlds import store, world

__all__ = ["store", "world"]
