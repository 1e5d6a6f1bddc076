"""What cases ask, with an answer that says what was found in place of what."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from heddle_agent.fib import Failure


class BrokenPromiseError(Exception):
    """What a backend does is not what a case says that it must."""


def same(found: object, wanted: object, what: str) -> None:
    """Both have to be equal."""
    if found != wanted:
        raise BrokenPromiseError(f"{what}: found {found!r}, not {wanted!r}")


def among(found: Collection[object], allowed: Collection[object], what: str) -> None:
    """All that was found has to be allowed."""
    if not set(found) <= set(allowed):
        raise BrokenPromiseError(f"{what}: found {set(found) - set(allowed)!r}, not of {allowed!r}")


def several(found: Collection[object], what: str) -> None:
    """More than one has to be there."""
    if len(set(found)) <= 1:
        raise BrokenPromiseError(f"{what}: found {set(found)!r} alone, not several")


def accepted(failures: Sequence[Failure]) -> None:
    """A batch has to be in, whole."""
    if failures:
        told = "; ".join(f"{f.match} {f.reason.name}: {f.message}" for f in failures)
        raise BrokenPromiseError(f"a batch was refused in part: {told}")
