"""Sends batches of changes to Redis; the scripts that run there, and the keys of a store.

A batch is one pipeline with one call of the ``write`` script per change. With ``appendfsync
always`` the server then waits for its disk once per batch and not once per change.

Records of the audit trail form a chain, in which each hash covers the one before. They are linked
here, each to the record that is expected before it. The script refuses a record whose predecessor
is not the newest. A refused change is linked again and goes with the next batch.

Every write of a leader compares its epoch in the same step that writes. So all keys have one hash
tag, and in a cluster they share a slot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import NoScriptError, RedisError

from heddle_controller.state.audit import Mark
from heddle_controller.state.errors import Unavailable
from heddle_controller.state.view import Outcome
from heddle_controller.store.applier import AGAIN, Bounds, Sent
from heddle_controller.store.redis.link import AWAY, Link


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script, and the SHA-1 digest by which a server remembers it."""

    text: str
    digest: str

    async def call(self, client: Redis, keys: Sequence[str], args: Sequence[Any]) -> Any:  # noqa: ANN401 - whatever the script answers
        """Run the script by its digest, or by its text if the server does not know it."""
        try:
            return await client.evalsha(self.digest, len(keys), *keys, *args)
        except NoScriptError:
            return await client.eval(self.text, len(keys), *keys, *args)

    def queue(self, pipeline: Pipeline, keys: Sequence[str], args: Sequence[Any]) -> None:
        """Add a call to a pipeline. The caller must handle ``NoScriptError``."""
        pipeline.evalsha(self.digest, len(keys), *keys, *args)


def _script(name: str) -> Script:
    text = (Path(__file__).parent / "lua" / f"{name}.lua").read_text(encoding="ascii")
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


FORM = "5"
"""Version of the stored form. Another version is refused."""

WRITE = _script("write")
NEWS = _script("news")
POSITION = _script("position")
LEAD = _script("lead")
RENEW = _script("renew")
RESIGN = _script("resign")
LIFT = _script("lift")
AUDIT = _script("audit")


class Note(NamedTuple):
    """An entry of the log: what a write changed."""

    token: str
    """Unique name of the write."""
    writer: str
    """The replica that made it."""
    kind: str
    """What it moves (see ``Change.moves``), or ``LEASE``."""
    fabric: str = ""
    fields: tuple[str, ...] = ()
    """Fields that changed. "*" means that so many changed that all are read again."""


LEASE = "l"
"""Kind of a ``Note``: a lease was taken or given up."""


def note_of(entry: Mapping[bytes, bytes]) -> Note:
    """Parse an entry of the log."""
    token, writer, kind, *rest = orjson.loads(entry[b"n"])
    return Note(token, writer, kind, rest[0] if rest else "", tuple(rest[1:]))


class Keys:
    """The names of all keys of one store."""

    def __init__(self, name: str) -> None:
        tag = f"{{{name}}}"
        self.sequence = f"{tag}:sequence"
        """Counter: number of the newest write."""
        self.log = f"{tag}:log"
        """Stream of the fields that the newest writes changed, without values."""
        self.leader = f"{tag}:leader"
        """Hash of the newest epoch and its holder."""
        self.lease = f"{tag}:lease"
        """The epoch that leads; expires with its lease."""
        self.requests = f"{tag}:requests"
        """Hash of answers by request id."""
        self.request_order = f"{tag}:requests:order"
        """List of request ids, oldest first."""
        self.references = f"{tag}:references"
        """Hash of the number of references to each blob."""
        self.fabrics = f"{tag}:fabrics"
        """Set of the fabrics' names."""
        self.audit = f"{tag}:audit"
        """Stream of the audit trail."""
        self.audit_marks = f"{tag}:audit:marks"
        """Hash of the head and the anchor of the audit trail."""
        self.secrets = f"{tag}:secrets"
        """Hash of the secrets that all replicas share."""
        self.meta = f"{tag}:meta"
        """Hash with the version of the stored form."""
        self.fabric_prefix = f"{tag}:fabric:"
        """Prefix of a fabric's name; that key is a hash of the fabric's fields."""
        self._blob_prefix = f"{tag}:blob:"

    def blob(self, identity: str) -> str:
        """Return the key of the hash with the pieces of a large value."""
        return self._blob_prefix + identity


Raw = str | bytes | int


@dataclass(frozen=True, slots=True)
class Durability:
    """What a write waits for in addition to what the server's own settings require."""

    replicas: int = 0
    """How many replicas must have the write. They get half the ``timeout`` of a call for it."""


class Writes:
    """Delivers batches of changes to the server."""

    def __init__(
        self, link: Link, keys: Keys, writer: str, bounds: Bounds, durability: Durability
    ) -> None:
        self._link = link
        self._keys = keys
        self._writer = writer
        self._bounds = bounds
        self._durability = durability
        self._head = Mark()
        """Head of the audit trail, as far as it is known here."""
        self.on_done: list[Callable[[Sent, Outcome], None]] = []
        """Called for each change that was written, even if its caller is gone."""

    async def deliver(self, batch: Sequence[Sent]) -> list[Outcome | Exception]:
        """Send a batch and return the outcome or error of each change. Raises ``Unavailable``."""
        linked = self._linked(batch)
        calls = [self._call(*one) for one in zip(batch, linked, strict=True)]
        answers = await self._exchange(calls)
        held = answers.pop() if self._durability.replicas else 0
        return [self._outcome(*one, held) for one in zip(batch, linked, answers, strict=True)]

    def _linked(self, batch: Sequence[Sent]) -> list[tuple[Mark, Mark]]:
        """Return the head of the audit trail before and after each change, if all are made."""
        found, head = [], self._head
        for sent in batch:
            before, entry = head, sent.change.audit
            head = head.follow(entry.content()) if entry else head
            found.append((before, head))
        return found

    async def _exchange(self, calls: list[tuple[list[str], list[Raw]]]) -> list[Any]:
        answers = await self._link.call(lambda c: self._pipe(c, calls))
        if any(isinstance(answer, NoScriptError) for answer in answers):
            # A server that was restarted knows no scripts. A call that failed so has done
            # nothing, so all of these may be sent again in their order.
            await self._link.call(lambda c: c.script_load(WRITE.text))
            again = [n for n, a in enumerate(answers[: len(calls)]) if isinstance(a, NoScriptError)]
            second = await self._link.call(lambda c: self._pipe(c, [calls[n] for n in again]))
            for n, answer in zip(again, second, strict=False):
                answers[n] = answer
            if self._durability.replicas:
                answers[-1] = second[-1]
        return answers

    async def _pipe(self, client: Redis, calls: list[tuple[list[str], list[Raw]]]) -> list[Any]:
        async with client.pipeline(transaction=False) as pipeline:
            for keys, args in calls:
                WRITE.queue(pipeline, keys, args)
            self._wait(pipeline)
            answers: list[Any] = await pipeline.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, AWAY):
                raise answer
        return answers

    def _call(self, sent: Sent, linked: tuple[Mark, Mark]) -> tuple[list[str], list[Raw]]:
        change, keys, bounds = sent.change, self._keys, self._bounds
        names = [
            keys.sequence,
            keys.log,
            keys.fabric_prefix + change.fabric,
            keys.leader,
            keys.requests,
            keys.request_order,
            keys.references,
            keys.fabrics,
            keys.audit,
            keys.audit_marks,
            *(keys.blob(blob.id) for blob in change.keep),
            *(keys.blob(identity) for identity in change.drop),
        ]
        before, after = linked
        args: list[Raw] = [
            sent.token,
            self._writer,
            change.moves,
            change.fabric,
            "" if change.epoch is None else change.epoch,
            sent.ask.request.id,
            sent.ask.remembered(change.answer),
            bounds.requests,
            bounds.writes,
            repr(change.time),
            *_fields(change.guards),
            len(change.keep),
            len(change.drop),
            *_fields(change.sets.items()),
            orjson.dumps(change.audit) if change.audit else "",
            before.hash,
            after.number,
            after.hash,
            bounds.audit,
        ]
        return names, [_packed(args)]

    def _outcome(
        self,
        sent: Sent,
        linked: tuple[Mark, Mark],
        answer: Any,  # noqa: ANN401 - replies
        held: Any,  # noqa: ANN401 - likewise
    ) -> Outcome | Exception:
        if isinstance(answer, Exception):
            told = Unavailable(f"store {self._link.name}: {answer}")
            return told if isinstance(answer, RedisError) else answer
        kind = "done" if isinstance(answer, int) else answer[0].decode()
        if kind == "chain":
            self._head = Mark(int(answer[1]), answer[2])
            return AGAIN
        if kind == "replay":
            return self._unless_lost(Outcome(kind, answer=answer[1]), held)
        if kind != "done":
            return Outcome(kind, int(answer[1]) if kind == "epoch" else 0)
        outcome = Outcome(kind, answer)
        if sent.change.audit is not None:
            self._head = linked[1]
        if outcome.number:
            for tell in self.on_done:
                tell(sent, outcome)
        return self._unless_lost(outcome, held)

    async def remembered(self, request: str) -> bytes | None:
        """Return what is kept under a request id, or None if it is new.

        Raises:
            Unavailable: also if fewer replicas have that write than writes must wait for, because
                the write could be lost with the master.
        """

        async def read(client: Redis) -> list[Any]:
            async with client.pipeline(transaction=False) as pipeline:
                pipeline.hget(self._keys.requests, request)
                self._wait(pipeline)
                answers: list[Any] = await pipeline.execute()
            return answers

        answer, *held = await self._link.call(read)
        if answer is None:
            return None
        outcome = self._unless_lost(Outcome("replay", answer=answer), *held)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome.answer

    def _wait(self, pipeline: Any) -> None:  # noqa: ANN401 - the library's types are unions
        """Make the server wait until enough replicas have all writes so far."""
        if self._durability.replicas:
            pipeline.wait(self._durability.replicas, round(self._link.timeout * 500))

    def _unless_lost(self, outcome: Outcome, held: int | Exception = 0) -> Outcome | Unavailable:
        """Return the outcome, or ``Unavailable`` if too few replicas have the write."""
        least = self._durability.replicas
        if not isinstance(held, Exception) and held >= least:
            return outcome
        return Unavailable(
            f"store {self._link.name}: written, but {held} of {least} replicas had it in time; "
            "ask again with the same request id"
        )


def _packed(parts: Iterable[Raw]) -> bytes:
    """Pack arguments into one, each preceded by its length (4 bytes, big-endian).

    For some fifty arguments the client library would take longer than the server does for the
    change.
    """
    packed: list[bytes] = []
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode()
        packed += (len(raw).to_bytes(4, "big"), raw)
    return b"".join(packed)


def _fields(rows: Iterable[tuple[str, bytes | None]]) -> list[Raw]:
    """Return the number of fields, then each name and value, in the form the script reads.

    A value is preceded by "=". "-" stands for no value.
    """
    listed: list[Raw] = []
    for field, value in rows:
        listed += (field, b"-" if value is None else b"=" + value)
    return [len(listed) // 2, *listed]
