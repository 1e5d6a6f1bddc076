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
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import structlog

from heddle_controller.state.change import ABSENT, INTENT, Ask, Blob, Change, Outcome
from heddle_controller.state.demands import DEMANDS, demand_sets
from heddle_controller.state.errors import Unavailable
from heddle_controller.state.fabrics import GROUND, meta_of
from heddle_controller.state.records import Versions
from heddle_controller.state.view import View
from heddle_controller.store.applier import Bounds
from heddle_controller.store.batches import Sent, Tokens
from heddle_controller.store.redis.journal import Journal, Written
from heddle_controller.store.redis.mirror import Mirror, OlderError
from heddle_controller.store.redis.scripts import FORM, LIFT, RAISE, note_of

log = structlog.stdlib.get_logger(__name__)

ROUNDS = 20
ROUND_SECONDS = 0.1
"""For which what does not fit yet is tried again: another replica may have to come first."""
LOG_TOLD = 20_000
"""More entries than a log ever has."""
REFILLED = "refilled"
"""Number of the newest write that a fabric, written again, has in it."""
_FACTS = {
    "plan",
    "programmed",
    "kept_for",
    "generation",
    "fact",
    "version",
    "facts",
    "change_time",
}
"""Kinds of fields that do not come back: plans are made anew, by a leader of a greater epoch."""

Apply = Callable[[Change, Ask], Awaitable[Outcome]]


@dataclass(slots=True, eq=False)
class Loss:
    """What became of a server's having come back older."""

    number: int
    """Of the newest write that was known before."""
    known: Mapping[str, Versions]
    """That had been told of, by fabric."""
    fields: Mapping[str, Mapping[str, bytes]]
    """All that was known of each fabric."""
    lost: int = 0
    """Writes of ours that it did not have."""
    refused: int = 0
    """Those of them that could not be given back."""
    done: bool = False


class Recovery:
    """What is done when the server is there again."""

    def __init__(
        self,
        mirror: Mirror,
        writer: str,
        bounds: Bounds,
        apply: Apply,
        end_leases: Callable[[], None],
    ) -> None:
        """For one replica.

        Args:
            mirror: What it knows.
            writer: What tells its writes from those of others.
            bounds: How much is kept.
            apply: Makes a change, also while nobody else may write.
            end_leases: Called where the store is not the one that gave them out.
        """
        self._mirror = mirror
        self._link = mirror.link
        self._keys = mirror.keys
        self._writer = writer
        self._bounds = bounds
        self._apply = apply
        self._end_leases = end_leases
        self._journal = Journal()
        self.losses: list[Loss] = []
        self.secrets: dict[str, bytes] = {}
        """That are in use here, by name."""
        self.packed: Callable[[View], Mapping[str, bytes]] = lambda _: {}
        """Large values of a fabric that are in memory, by blob."""
        self.see_again: Callable[[], Awaitable[None]] | None = None
        """Says again what agents have said."""

    def note(self, sent: Sent, outcome: Outcome) -> None:
        """Remember a write of a client's intent."""
        if sent.change.audit is not None:
            self._journal.add(Written(outcome.number, sent.token, sent.change, sent.ask))

    async def look_again(self) -> None:
        """See what the server has; before anybody else may use it."""
        mirror = self._mirror
        try:
            await mirror.follow(inner=True)
        except OlderError as error:
            self._be_patient(error)
            known = {fabric: view.versions() for fabric, view in mirror.views.items()}
            fields = {fabric: view.fields() for fabric, view in mirror.views.items()}
            log.error("store came back older", store=self._link.name, why=str(error))  # noqa: TRY400 - a finding, whose trace says nothing
            self.losses.append(Loss(mirror.number, known, fields))
            self._end_leases()
            await mirror.load(inner=True)
        for loss in self.losses:
            if not loss.done:  # it may have been cut short, by the server going again
                await self._give_back(loss)

    def _be_patient(self, error: OlderError) -> None:
        """Leave an older server alone for a while, where there may be a newer one.

        A master that died and was started again at once still counts as the master until
        the sentinels have agreed on another.
        """
        if self._link.silent_for() < self._link.patience:
            raise Unavailable(f"another master is looked for, since {error}") from error

    async def _give_back(self, loss: Loss) -> None:
        lost = self._journal.lost(*await self._told())
        await self._go_on_from(loss.number)
        await self._agree_again()
        for fabric, fields in loss.fields.items():
            await self._bring_back(fabric, fields, loss.number)
        await self._mirror.load(inner=True)
        whole = [self._in_refill(written) for written in lost]
        await asyncio.gather(
            *(self._record_again(w) for w, is_in in zip(lost, whole, strict=True) if is_in)
        )
        lost = [written for written, is_in in zip(lost, whole, strict=True) if not is_in]
        loss.lost = max(loss.lost, len(lost))
        refused = await self._offer(lost)
        for written in refused:
            self._name_lost(written)
        loss.refused += len(refused)
        if self.see_again is not None:
            await self.see_again()
        for fabric, versions in loss.known.items():
            key = self._keys.fabric_prefix + fabric
            least = [versions.intent + 1, versions.facts + 1]
            await self._link.call(
                lambda client, k=key, v=least: LIFT.call(client, [k], v),  # type: ignore[misc]
                inner=True,
            )
        await self._mirror.load(inner=True)
        loss.done = True
        log.error(
            "store taken up again",
            store=self._link.name,
            offered_again=loss.lost,
            not_taken=loss.refused,
        )

    async def _go_on_from(self, number: int) -> None:
        """Give no number out twice: positions of other replicas would seem to hold."""
        keys, args = self._keys, [number, Tokens()(), self._writer, self._bounds.writes]
        await self._link.call(
            lambda client: RAISE.call(client, [keys.sequence, keys.log], args), inner=True
        )

    async def _agree_again(self) -> None:
        """Give back what replicas agree on besides: the form of all this, and secrets in use."""
        keys, secrets = self._keys, self.secrets

        async def agree(client: Any) -> None:  # noqa: ANN401 - the library's types are unions
            await client.hsetnx(keys.meta, "form", FORM)
            if secrets:
                await client.hset(keys.secrets, mapping=secrets)

        await self._link.call(agree, inner=True)

    async def _bring_back(self, fabric: str, fields: Mapping[str, bytes], number: int) -> None:
        """Write a fabric whole that the server has nothing of."""
        if fabric in self._mirror.views:
            return
        change = self._refill(fabric, fields, number)
        if change is None:
            log.error("fabric lost, and not known here", fabric=fabric)
            return
        outcome = await self._apply(change, Ask())
        log.error("fabric was lost whole", fabric=fabric, written_again=outcome.kind == "done")

    def _refill(self, name: str, fields: Mapping[str, bytes], number: int) -> Change | None:
        """Brings a fabric back; None where its structure was never needed here, so is not known."""
        view = View(name)
        view.replace(fields.items())
        if not view.known:
            return None
        packed, structure = self.packed(view), meta_of(view).blob
        if structure not in packed:
            return None
        unknown = {
            f"{DEMANDS}/{one}" for one, kept in demand_sets(view).items() if kept.blob not in packed
        }
        sets: dict[str, bytes | None] = {
            field: value
            for field, value in fields.items()
            if field.partition("/")[0] not in _FACTS and field not in unknown
        }
        return Change(
            fabric=name,
            moves=INTENT,
            time=float(view.raw("change_time") or 0.0),
            guards=((GROUND, ABSENT),),
            sets={**sets, REFILLED: str(number).encode()},
            keep=tuple(Blob(*one) for one in packed.items()),
        )

    def _in_refill(self, written: Written) -> bool:
        """Whether a fabric that was written again has this write in it already."""
        view = self._mirror.views.get(written.change.fabric)
        return view is not None and view.number(REFILLED) >= written.number

    async def _record_again(self, written: Written) -> None:
        """Have a write that its fabric has in it also in the trail, and its request answered."""
        change = replace(written.change, guards=(), sets={}, keep=(), drop=())
        await self._apply(change, written.ask)
        self._journal.forget(written)

    def _name_lost(self, written: Written) -> None:
        """Say which acknowledged write is gone for good."""
        self._journal.forget(written)
        entry = written.change.audit
        log.error(
            "acknowledged write is lost, ask for it again",
            store=self._link.name,
            action=entry.action if entry else "",
            name=entry.name if entry else written.change.fabric,
            request=written.ask.request.id,
        )

    async def _told(self) -> tuple[int, set[str]]:
        """Number of the oldest write in the server's log, and the tokens of all in it."""

        async def ask(client: Any) -> Any:  # noqa: ANN401 - the library's types are unions
            return await client.xrange(self._keys.log, count=LOG_TOLD)

        entries = await self._link.call(ask, inner=True)
        first = 0
        if entries:
            identity, fields = entries[0]
            first = int(fields.get(b"p", identity.partition(b"-")[0]))
        return first, {note_of(fields).token for _, fields in entries}

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
            outcome = await self._apply(written.change, written.ask)
            if outcome.kind in ("done", "replay"):
                self._journal.forget(written)
            else:
                refused.append(written)
        return refused
