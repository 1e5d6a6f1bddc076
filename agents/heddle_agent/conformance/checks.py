"""The checks that cases make; a failed check says what was found and what was expected."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from heddle_agent.fib import Failure


class BrokenPromiseError(Exception):
    """A backend does not do what a case says that it must."""


def same(found: object, wanted: object, what: str) -> None:
    """Require that both are equal."""
    if found != wanted:
        raise BrokenPromiseError(f"{what}: found {found!r}, not {wanted!r}")


def among(found: Collection[object], allowed: Collection[object], what: str) -> None:
    """Require that everything found is allowed."""
    if not set(found) <= set(allowed):
        raise BrokenPromiseError(f"{what}: found {set(found) - set(allowed)!r}, not of {allowed!r}")


def several(found: Collection[object], what: str) -> None:
    """Require more than one distinct value."""
    if len(set(found)) <= 1:
        raise BrokenPromiseError(f"{what}: found {set(found)!r} alone, not several")


def accepted(failures: Sequence[Failure]) -> None:
    """Require that no operation of a batch failed."""
    if failures:
        told = "; ".join(f"{f.match} {f.reason.name}: {f.message}" for f in failures)
        raise BrokenPromiseError(f"a batch was refused in part: {told}")
