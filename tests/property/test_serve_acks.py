"""Answers of agents that come late, twice or out of order, against a small model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from heddle.v1 import agent_pb2 as pb
from heddle_agent.session.decode import decode_push
from heddle_agent.session.names import ReceivedNames
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.program import no_entries
from heddle_controller.reconcile.ports import (
    AgentSession,
    Push,
    PushMode,
    PushReport,
    PushStatus,
)
from heddle_controller.serve.agents.stream import AgentStream, EpochGuard
from heddle_controller.state.errors import SessionLost, StaleEpoch
from tests.support.depth import examples
from tests.support.store_samples import clos, plan_of, program_of

FABRIC = clos()
ENTRY = program_of(plan_of(FABRIC), 1, 1).entries
IDS = [FABRIC.structure.nodes.ids[row] for row in FABRIC.rows_of_kind(NodeKind.NIC)]
NICS = st.lists(st.sampled_from(IDS), max_size=3, unique=True)
LIMIT = 4
LAST_RIB, LAST_FIB = pb.PUSH_STAGE_RIB, pb.PUSH_STAGE_FIB


@dataclass
class Told:
    """What the model knows of one push, and how it must have ended."""

    generation: int
    answer: asyncio.Future[PushReport]
    nics: list[str]
    """NICs of the entries that it removes."""
    nonce: int = 0
    """Nonce in the stream; 0 until the push is sent."""
    rib: bool = False
    ended: str = ""
    """``fib``, ``refused``, ``lost`` or ``stale``; empty until something has ended it."""


class Acks(RuleBasedStateMachine):
    """One stream, an agent that answers at random, and a lead that is lost and regained."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.leads = True
        self.guard = EpochGuard(lambda _epoch: self.leads)
        about = AgentSession(1, "f1", "l0", "i", "0", frozenset(), 0, 1, 1, b"d")
        self.stream = AgentStream(about, LIMIT, self.guard)
        self.outgoing: AsyncGenerator[Any, None] = self.stream.outgoing()
        self.generation = 0
        self.session = 1
        self.pushes: list[Told] = []
        self.unsent: list[Told] = []
        self.over = False
        self.names = ReceivedNames()
        """Names that the agent knows."""

    def teardown(self) -> None:
        """End the stream, and assert that no push waits for ever."""
        self.stream.end()
        self._lost()
        self.check()
        assert not self.waiting()
        self.loop.run_until_complete(self.outgoing.aclose())
        self.loop.close()

    def waiting(self) -> list[Told]:
        """Pushes that have not ended."""
        return [one for one in self.pushes if not one.ended]

    def batch(self, nics: list[str]) -> Push:
        """A push that removes entries from each of these NICs to the next."""
        self.generation += 1
        rows = np.array([FABRIC.structure.index[nic] for nic in nics], dtype=np.int64)
        some = ENTRY.take(np.zeros(len(rows), dtype=np.int64))
        gone = replace(some, source=rows, destination=np.roll(rows, 1))
        return Push(PushMode.INCREMENTAL, 5, self.generation, FABRIC, no_entries(), gone)

    @rule(nics=NICS)
    @precondition(lambda self: not self.stream.full)
    def submit(self, nics: list[str]) -> None:
        """Submit a push, as the reconcile loop does."""
        push = self.batch(nics)

        async def ask() -> asyncio.Future[PushReport]:
            return self.stream.submit(push)

        told = Told(self.generation, self.loop.run_until_complete(ask()), nics)
        self._queued(told)

    def _queued(self, told: Told) -> None:
        self.pushes.append(told)
        if self.over:
            told.ended = "lost"
        else:
            self.unsent.append(told)

    @rule()
    @precondition(lambda self: self.unsent and not self.over)
    def send(self) -> None:
        """Let the stream send the next push.

        While the lead is lost, pushes end as stale instead.
        """
        while self.unsent:
            told = self.unsent.pop(0)
            if self.leads:
                message = self.loop.run_until_complete(anext(self.outgoing))
                assert message.push.generation == told.generation
                assert not any(message.push.nonce == one.nonce for one in self.pushes)
                told.nonce = message.push.nonce
                self._read(message.push, told.nics)
                return
            told.ended = "stale"
        # Nothing may go: let the stream see that.
        waiting = asyncio.wait_for(anext(self.outgoing), 0.01)
        try:
            self.loop.run_until_complete(waiting)
        except TimeoutError:
            self.outgoing = self.stream.outgoing()
        else:
            raise AssertionError("what may not go went")

    def _read(self, push: pb.Push, nics: list[str]) -> None:
        """Decode a push as the agent does, and assert that it knows every name."""
        matches = decode_push(push, self.names).operations.matches
        assert [match[:2] for match in matches] == list(zip(nics, nics[-1:] + nics, strict=False))

    @rule(data=st.data(), stage=st.sampled_from([LAST_RIB, LAST_FIB]), applied=st.booleans())
    @precondition(lambda self: any(one.nonce for one in self.pushes))
    def answer(self, data: st.DataObject, stage: pb.PushStage.ValueType, applied: bool) -> None:  # noqa: FBT001 - drawn
        """Answer any push that was ever sent, perhaps again, in any order."""
        told = data.draw(st.sampled_from([one for one in self.pushes if one.nonce]))
        status = pb.PUSH_STATUS_APPLIED if applied else pb.PUSH_STATUS_STALE_EPOCH
        result = pb.PushResult(
            nonce=told.nonce,
            epoch=5,
            generation=told.generation,
            stage=stage,
            status=status,
            highest_epoch=6,
        )
        self.stream.answered(result, 1.0)
        if told.ended:
            return
        if stage == LAST_FIB:
            told.ended = "fib"
        elif not applied:
            told.ended = "refused"
        told.rib = True

    @rule(nonce=st.integers(10_000, 20_000))
    def answer_nothing(self, nonce: int) -> None:
        """Answer a push that was never sent."""
        self.stream.answered(pb.PushResult(nonce=nonce, stage=LAST_FIB), 1.0)

    @rule()
    @precondition(lambda self: not self.over)
    def begin_anew(self) -> None:
        """Begin the session anew, as for an agent that fell too far behind."""
        self.session += 1
        self.stream.begin_anew(self.session)
        self._lost()

    @rule(leads=st.booleans())
    def lease(self, leads: bool) -> None:  # noqa: FBT001 - drawn
        """Lose or regain the lease."""
        self.leads = leads

    @rule()
    @precondition(lambda self: not self.over)
    def end(self) -> None:
        """End the stream, as when the connection is gone."""
        self.stream.end()
        self.over = True
        self._lost()

    def _lost(self) -> None:
        self.unsent.clear()
        for told in self.pushes:
            told.ended = told.ended or "lost"

    @invariant()
    def check(self) -> None:
        """Every push has ended, or not, exactly as the model says."""
        self.loop.run_until_complete(asyncio.sleep(0))
        open_ones = [one for one in self.pushes if not one.ended]
        assert self.stream.pending_count == len(open_ones) <= LIMIT
        for told in self.pushes:
            _check(told, told.answer)


def _check(told: Told, answer: asyncio.Future[PushReport]) -> None:
    assert answer.done() == bool(told.ended)
    if told.ended in {"lost", "stale"}:
        kind = SessionLost if told.ended == "lost" else StaleEpoch
        assert isinstance(answer.exception(), kind)
    elif told.ended:
        report = answer.result()
        assert (report.fib is not None) == (told.ended == "fib")
        if told.ended == "refused":
            assert report.status is PushStatus.STALE_EPOCH


Acks.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=40, deadline=None)
TestAcks = Acks.TestCase
