"""A server that came back: is it the one we knew, and if it is older, what has it lost?

Every replica offers again what it has had acknowledged and the server does not have, in
its order and under the guards of the first time, so that etags, hosts and the answers to
requests are what clients were told. Replicas do so at the same time: where a write of
one stands on a write of another, it is tried again for a while. What cannot be given
back, because something else took its place, is named, loudly.

Leases of the older server are void. Epochs go on from the highest that was seen here or
by any agent, and versions from above the highest that was told of, so that nobody who
compares takes the new for the old.

What is not of any one fabric is said again too: the secret in use, or a replica that starts
later would agree with nobody; of a fabric written again as a whole, the trail of how it came
about and the answers that its requests had.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import structlog

from heddle_controller.state.errors import Unavailable
from heddle_controller.store.common.reporters import Reporter
from heddle_controller.store.redis.change import Outcome, new_token
from heddle_controller.store.redis.fabric import meta_of
from heddle_controller.store.redis.journal import Written
from heddle_controller.store.redis.lane import Sent
from heddle_controller.store.redis.leadership import LeadershipPart
from heddle_controller.store.redis.mirror import OlderError
from heddle_controller.store.redis.observed import ObservedPart, reporters_of
from heddle_controller.store.redis.part import FORM, NO_ASK, Recovery
from heddle_controller.store.redis.refill import REFILLED, RefillPart
from heddle_controller.store.redis.scripts import LIFT, RAISE

log = structlog.stdlib.get_logger(__name__)

ROUNDS = 20
ROUND_SECONDS = 0.1
"""For which what does not fit yet is tried again: another replica may have to come first."""
LOG_TOLD = 20_000
"""More entries than a log ever has."""


class RecoveryPart(LeadershipPart, ObservedPart, RefillPart):
    """What is done when the server is there again."""

    def _journal(self, sent: Sent, outcome: Outcome) -> None:
        """Remember a write of a client's intent."""
        if sent.change.audit is not None:
            written = Written(outcome.number, sent.token, sent.change, sent.ask)
            self._shared.journal.add(written)

    async def _look_again(self) -> None:
        """See what the server has; before anybody else may use it."""
        mirror, shared = self._shared.mirror, self._shared
        try:
            await mirror.follow(inner=True)
        except OlderError as error:
            self._be_patient(error)
            known = {fabric: view.versions() for fabric, view in mirror.views.items()}
            fields = {fabric: view.fields() for fabric, view in mirror.views.items()}
            log.error("store came back older", store=shared.link.name, why=str(error))  # noqa: TRY400 - a finding, whose trace says nothing
            shared.recoveries.append(Recovery(mirror.number, known, fields))
            self.end_all()
            await mirror.load(inner=True)
        for recovery in shared.recoveries:
            if not recovery.done:  # it may have been cut short, by the server going again
                await self._give_back(recovery)

    def _be_patient(self, error: OlderError) -> None:
        """Leave an older server alone for a while, where there may be a newer one.

        A master that died and was started again at once still counts as the master until
        the sentinels have agreed on another.
        """
        link = self._shared.link
        if link.silent_for() < link.patience:
            raise Unavailable(f"another master is looked for, since {error}") from error

    async def _give_back(self, recovery: Recovery) -> None:
        shared = self._shared
        lost = shared.journal.lost(*await self._told())
        await self._go_on_from(recovery.number)
        await self._agree_again()
        for fabric, fields in recovery.fields.items():
            await self._bring_back(fabric, fields, recovery.number)
        await shared.mirror.load(inner=True)
        whole = [self._in_refill(written) for written in lost]
        await asyncio.gather(
            *(self._record_again(w) for w, is_in in zip(lost, whole, strict=True) if is_in)
        )
        lost = [written for written, is_in in zip(lost, whole, strict=True) if not is_in]
        recovery.lost = max(recovery.lost, len(lost))
        refused = await self._offer(lost)
        for written in refused:
            self._name_lost(written)
        recovery.refused += len(refused)
        await self._see_again()
        for fabric, versions in recovery.known.items():
            key = shared.keys.fabric_prefix + fabric
            least = [versions.intent + 1, versions.facts + 1]
            await shared.link.call(
                lambda client, k=key, v=least: LIFT.call(client, [k], v),  # type: ignore[misc]
                inner=True,
            )
        await shared.mirror.load(inner=True)
        recovery.done = True
        log.error(
            "store taken up again",
            store=shared.link.name,
            offered_again=recovery.lost,
            not_taken=recovery.refused,
        )

    async def _go_on_from(self, number: int) -> None:
        """Give no number out twice: positions of other replicas would seem to hold."""
        keys, shared = self._shared.keys, self._shared
        args = [number, new_token(), shared.writer, shared.bounds.writes]
        await shared.link.call(
            lambda client: RAISE.call(client, [keys.sequence, keys.log], args), inner=True
        )

    async def _agree_again(self) -> None:
        """Give back what replicas agree on besides: the form of all this, and secrets in use."""
        keys, secrets = self._shared.keys, self._shared.secrets

        async def agree(client: Any) -> None:  # noqa: ANN401 - the library's types are unions
            await client.hsetnx(keys.meta, "form", FORM)
            if secrets:
                await client.hset(keys.secrets, mapping=secrets)

        await self._shared.link.call(agree, inner=True)

    async def _bring_back(self, fabric: str, fields: Mapping[str, bytes], number: int) -> None:
        """Write a fabric whole that the server has nothing of."""
        if fabric in self._shared.mirror.views:
            return
        change = self._refill(fabric, fields, number)
        if change is None:
            log.error("fabric lost, and not known here", fabric=fabric)
            return
        outcome = await self._shared.lane.send(change, NO_ASK, inner=True)
        log.error("fabric was lost whole", fabric=fabric, written_again=outcome.kind == "done")

    def _in_refill(self, written: Written) -> bool:
        """Whether a fabric that was written again has this write in it already."""
        view = self._shared.mirror.views.get(written.change.fabric)
        return view is not None and view.number(REFILLED) >= written.number

    async def _record_again(self, written: Written) -> None:
        """Have a write that its fabric has in it also in the trail, and its request answered."""
        change = replace(written.change, guards=(), ops=(), keep=(), drop=())
        await self._shared.lane.send(change, written.ask, inner=True)
        self._shared.journal.forget(written)

    def _name_lost(self, written: Written) -> None:
        """Say which acknowledged write is gone for good."""
        self._shared.journal.forget(written)
        entry = written.change.audit
        log.error(
            "acknowledged write is lost, ask for it again",
            store=self._shared.link.name,
            action=entry.action if entry else "",
            name=entry.name if entry else written.change.fabric,
            request=written.ask.request.id,
        )

    async def _told(self) -> tuple[int, set[str]]:
        """Number of the oldest write in the server's log, and the tokens of all in it."""

        async def ask(client: Any) -> Any:  # noqa: ANN401 - the library's types are unions
            return await client.xrange(self._shared.keys.log, count=LOG_TOLD)

        entries = await self._shared.link.call(ask, inner=True)
        first = 0
        if entries:
            identity, fields = entries[0]
            first = int(fields.get(b"p", identity.partition(b"-")[0]))
        return first, {fields[b"t"].decode() for _, fields in entries}

    async def _offer(self, lost: list[Written]) -> list[Written]:
        """Write again what was lost; those that could not be."""
        for turn in range(ROUNDS):
            if turn and lost:
                await asyncio.sleep(ROUND_SECONDS)
            lost = await self._offer_once(lost)
            if not lost:
                break
        return lost

    async def _offer_once(self, lost: list[Written]) -> list[Written]:
        refused = []
        for written in lost:
            outcome = await self._shared.lane.send(written.change, written.ask, inner=True)
            if outcome.kind in ("done", "replay"):
                self._shared.journal.forget(written)
            else:
                refused.append(written)
        return refused

    async def _see_again(self) -> None:
        """Say again which links are down, where the server knows less of it than we do."""
        for (fabric, switch), (_, mine) in list(self._shared.reporters.items()):
            for _ in range(ROUNDS):
                await self._shared.mirror.follow(inner=True)
                if await self._seen_again(fabric, switch, mine):
                    break

    async def _seen_again(self, fabric: str, switch: str, mine: Reporter) -> bool:
        """Whether the server knows now what we do; not if another came between."""
        view = self._shared.mirror.views.get(fabric)
        if view is None or meta_of(view).digest not in self._shared.structures:
            return True
        theirs = reporters_of(view).get(switch, Reporter())
        if not _newer(mine, theirs):
            return True
        change, (now, raw, _) = self._restatement(view, switch, theirs, mine)
        outcome = await self._shared.lane.send(change, NO_ASK, inner=True)
        if outcome.kind == "done":
            self._shared.reporters[fabric, switch] = (raw, now)
        return outcome.kind == "done"


def _newer(mine: Reporter, theirs: Reporter) -> bool:
    """Whether we have heard more of an agent, in the same life of it."""
    if mine.instance != theirs.instance:
        return not theirs.instance
    last = [max((seen.sequence for seen in r.links.values()), default=0) for r in (mine, theirs)]
    return last[0] > last[1]
