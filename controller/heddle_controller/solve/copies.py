"""Copies that share what does not change."""

from __future__ import annotations

from copy import copy
from typing import Any, TypeVar

_T = TypeVar("_T")


def copied(one: _T, *own: str, **others: Any) -> _T:  # noqa: ANN401 - attributes are of any type
    """A copy that shares all attributes, but for those named.

    Args:
        one: What is copied.
        own: Attributes of which it has a copy of its own, as their method ``copy`` makes it.
        others: Attributes that are something else in the copy.
    """
    other = copy(one)
    for name in own:
        setattr(other, name, getattr(one, name).copy())
    for name, value in others.items():
        setattr(other, name, value)
    return other
