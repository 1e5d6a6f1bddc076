"""Garbage: what is set aside is not looked through, and rings in it go all the same in the end."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from heddle_controller.serve.garbage import LEAST, NEVER, Caretaker


class Node:
    """What can be part of a ring."""

    def __init__(self, *others: Node) -> None:
        self.others = [*others, self]


@pytest.fixture(autouse=True)
def _own_garbage() -> Iterator[None]:
    """The interpreter's own thresholds, and nothing set aside, before and after."""
    before = gc.get_threshold()
    gc.unfreeze()
    gc.collect()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_a_ring_that_was_set_aside_goes_once_much_has_come_after_it() -> None:
    """A look with little that is new leaves it; one after as much as counts finds it."""
    caretaker = Caretaker(growth=0)
    ring = Node()
    seen = weakref.ref(ring)
    caretaker.look()
    del ring
    caretaker.look()
    gc.collect()  # it is not among what this looks through
    assert seen() is not None
    kept = [[number] for number in range(LEAST)]
    caretaker.look()
    assert seen() is None
    assert len(kept) == LEAST


def test_what_was_kept_counts_once() -> None:
    """After a full look it takes as much again for the next."""
    caretaker = Caretaker(growth=0)
    kept = [[number] for number in range(LEAST)]
    caretaker.look()
    ring = Node()
    seen = weakref.ref(ring)
    caretaker.look()
    del ring
    caretaker.look()
    assert seen() is not None
    assert len(kept) == LEAST


def test_what_nobody_knows_goes_at_once_though_set_aside() -> None:
    """Counting who knows an object works on what was set aside as ever."""
    node = Node()
    node.others.clear()
    seen = weakref.ref(node)
    gc.collect(1)
    Caretaker().look()
    del node
    assert seen() is None


async def test_the_interpreter_has_its_own_way_back_at_the_end() -> None:
    """While it runs nothing that has lasted is looked through by itself; then as before."""
    before = gc.get_threshold()
    task = asyncio.create_task(Caretaker().run())
    await asyncio.sleep(0)
    assert gc.get_threshold()[2] == NEVER
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert gc.get_threshold() == before
