"""Answers of few and of many items."""

from __future__ import annotations

import threading

import pytest

from heddle_controller.model.errors import InputError, refuse
from heddle_controller.serve.aside import FEW, aside


async def test_few_items_are_told_at_once_and_many_aside() -> None:
    """Where there are many, the thread that answers everybody is not the one that tells them."""
    here = threading.get_ident()
    assert await aside(FEW, threading.get_ident) == here
    assert await aside(FEW + 1, threading.get_ident) != here


@pytest.mark.parametrize("items", [1, FEW + 1])
async def test_what_cannot_be_told_is_refused_either_way(items: int) -> None:
    """The caller hears of it as if it had called itself."""

    def refused(field: str) -> None:
        raise refuse("request", field, "no")

    with pytest.raises(InputError, match="page"):
        await aside(items, refused, field="page")
