from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from heddle.v1 import agent_pb2 as pb
from heddle_controller.model.program import no_entries
from heddle_controller.reconcile.ports import Push, PushMode
from heddle_controller.serve.agents import stream as room
from heddle_controller.serve.agents.stream import Encoder
from heddle_controller.serve.codec import entries
from heddle_controller.serve.codec.entries import SentNames
from tests.support.pushes import push_to_pb
from tests.support.store_samples import clos, plan_of, program_of

FABRICS = [clos(), clos()]
ENTRIES = [program_of(plan_of(fabric), 1, 1).entries for fabric in FABRICS]


@dataclass(eq=False)
class Waiting:
    """A push of one of two fabrics that waits for its encoding."""

    push: Push
    message: entries.Encoded | None = None
    lost: bool = False

    @property
    def waits(self) -> bool:
        """Whether the push is neither encoded nor lost."""
        return self.message is None and not self.lost


def waiting(fabric: int = 0, generation: int = 1) -> Waiting:
    """Return a waiting push with the sample's entries."""
    sets = ENTRIES[fabric]
    return Waiting(Push(PushMode.INCREMENTAL, 1, generation, FABRICS[fabric], sets, no_entries()))


def whole(made: entries.Encoded) -> pb.Push:
    """Return the push for an agent that knows no names yet."""
    return made.named(SentNames()).push


def queued(*pushes: Waiting) -> Encoder:
    """Return an encoder with these pushes added."""
    encoder = Encoder()
    for push in pushes:
        encoder.add(push)
    return encoder


async def test_pushes_that_wait_are_encoded_with_the_first() -> None:
    """Each push gets the message that it would get alone.

    One that was lost meanwhile is left out.
    """
    pushes = [waiting(generation=number) for number in range(4)]
    pushes[2].lost = True
    encoder = queued(*pushes)
    first = await encoder.message(pushes[1])
    assert first is pushes[1].message
    for push in (pushes[0], pushes[1], pushes[3]):
        assert push.message is not None
        assert whole(push.message) == push_to_pb(push.push, 0)
    assert pushes[2].message is None


async def test_fabrics_are_encoded_apart() -> None:
    """Rows of one fabric mean nothing in another. Each push is encoded, in any order of asking."""
    pushes = [waiting(fabric) for fabric in (0, 1, 0)]
    encoder = queued(*pushes)
    await encoder.message(pushes[0])
    assert pushes[1].message is None
    await encoder.message(pushes[2])
    await encoder.message(pushes[1])
    for push in pushes:
        assert push.message is not None
        assert whole(push.message) == push_to_pb(push.push, 0)


async def test_no_turn_takes_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """What exceeds the share of a turn waits for the next. A large push is encoded in a thread."""
    each = len(ENTRIES[0])
    monkeypatch.setattr(room, "_TOGETHER", 3 * each)
    pushes = [waiting() for _ in range(5)]
    encoder = queued(*pushes)
    await encoder.message(pushes[0])
    assert [push.message is not None for push in pushes] == [True] * 3 + [False] * 2
    monkeypatch.setattr(room, "LARGE_PUSH", each)
    large = waiting(generation=9)
    encoder.add(large)
    made, _ = await asyncio.gather(encoder.message(large), asyncio.sleep(0))
    assert whole(made) == push_to_pb(large.push, 0)
