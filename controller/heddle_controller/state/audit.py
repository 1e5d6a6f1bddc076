"""The audit trail: who changed what, in a chain that shows whether anybody changed it since.

Every change of intent that a client makes adds one record, in the transaction of the
change itself: neither is ever there without the other. What agents observe and what the
leader finds out is no intent and is not here.

Each record's hash covers the one before, so a record that is altered, taken out, put in
or moved breaks the chain from there on. What a chain cannot show by itself is that its
end was cut off, or that somebody with the whole store in hand made it anew: for that a
``Mark`` (number and hash, one short word) is noted elsewhere, and compared later.

A record's *content* is hashed first, by itself, and then linked:

    content = SHA-256 over its seven texts, each behind its length in bytes (8, big-endian):
              time in microseconds, actor, request, action, name, before, after
    hash    = SHA-256 over the previous hash (32 bytes), the number (8, big-endian), content

The hash is made by whoever writes the record; a database only refuses a record that does
not follow its newest. Growth is bounded: the oldest records are dropped, and the mark of
the last one dropped stays as the anchor that the rest is verified against.

What the audit trail tells of a thing before and after a change: JSON, small and enough.

A job, a state: all of it. What is large (a fabric, a demand set, a job of thousands of
hosts) is told by its digest and what a person wants to know first, so that a record
never takes more than ``_MOST`` bytes. Etags and versions are left out: they are the
store's, and no part of what somebody wanted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from heddle.gpus import gpu_ranges
from heddle.names import link_name
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.job import Job
from heddle_controller.state.codec.container import parser
from heddle_controller.state.codec.jobs import job_json
from heddle_controller.state.records import Reservation, Rollback

GENESIS = bytes(32)
"""The hash before the first record."""

_MARK = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """What happened, before it has a number."""

    time: float
    """Unix seconds; microseconds count."""
    actor: str
    """Who: role and identity, "operator spiffe://heddle/operator/ann"."""
    request: str
    """Id that the client gave the request, or else that of the call in the logs."""
    action: str
    """Method of the port: "submit_job"."""
    name: str
    """What was changed: "fabrics/f1/jobs/j1"."""
    before: str
    """JSON; empty where there was nothing."""
    after: str
    """JSON; empty where there is nothing any more."""

    def content(self) -> bytes:
        """The 32 bytes that stand for all of it."""
        digest = hashlib.sha256()
        texts = (self.actor, self.request, self.action, self.name, self.before, self.after)
        for text in (str(round(self.time * 1e6)), *texts):
            raw = text.encode("utf-8", "surrogatepass")
            digest.update(len(raw).to_bytes(8, "big") + raw)
        return digest.digest()


parse_entry = parser(AuditEntry, "record of the audit trail")


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in the chain: how many records, and the hash of the last of them."""

    number: int = 0
    hash: bytes = GENESIS

    def __str__(self) -> str:
        return f"{self.number}:{self.hash.hex()}"

    def follow(self, content: bytes) -> Mark:
        """The mark after one more record."""
        number = self.number + 1
        linked = hashlib.sha256(self.hash + number.to_bytes(8, "big") + content)
        return Mark(number, linked.digest())


def parse_mark(text: str) -> Mark:
    """The mark that ``str`` wrote.

    Raises:
        ValueError: the text has another form; says which is meant.
    """
    found = _MARK.fullmatch(text.strip())
    if found is None:
        msg = f"{text!r} is not a mark: give NUMBER:HASH as 'heddle audit list' prints it"
        raise ValueError(msg)
    return Mark(int(found[1]), bytes.fromhex(found[2]))


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """An entry in its place."""

    number: int
    """Counted from 1 over the whole store, without gaps."""
    hash: bytes
    entry: AuditEntry


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Part of the trail, and what it is verified against."""

    anchor: Mark
    """Of the last record dropped; that before the first where none was."""
    head: Mark
    """Of the newest record."""
    records: tuple[AuditRecord, ...]
    """By number."""


class AuditBroken(Exception):  # noqa: N818 - a finding, not a fault of the program
    """The chain does not hold; ``number`` is the first record that does not fit."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"record {number}: {reason}")
        self.number = number


def verify(start: Mark, records: Iterable[AuditRecord], known: Mark | None = None) -> Mark:
    """The mark after the records, which follow ``start`` without gaps.

    Args:
        start: What comes before the first: the anchor, or the end of a part verified.
        records: In their order.
        known: A mark noted earlier that the chain has to pass through, if it lies
            between ``start`` and the end.

    Raises:
        AuditBroken: at the first record that does not fit.
    """
    here = start
    _compare(here, known)
    for record in records:
        here = here.follow(record.entry.content())
        if record.number != here.number:
            raise AuditBroken(here.number, f"is missing: {record.number} comes in its place")
        if record.hash != here.hash:
            raise AuditBroken(here.number, "was altered, or one before it was")
        _compare(here, known)
    return here


def _compare(here: Mark, known: Mark | None) -> None:
    if known is not None and here.number == known.number and here.hash != known.hash:
        raise AuditBroken(here.number, f"is not the one that was noted as {known}")


_MOST = 4096
"""Bytes of one side."""
_NAMED = 20
"""Links or switches told by name."""


def job_text(job: Job) -> str:
    """A job whole, or its digest, size and where its hosts begin."""
    content = job_json(job)
    if len(content) <= _MOST:
        return content.decode()
    some = {"host_count": len(job.hosts), "gpus_per_host": job.gpus_per_host}
    return _text({"name": job.name[:256], **some, **digest_of(content)})


def reservation_text(one: Reservation) -> str:
    """A reservation by its number of hosts, where they begin, and its end."""
    return _text(
        {
            "name": one.name,
            "host_count": len(one.hosts),
            "hosts": [host[:64] for host in one.hosts[:_NAMED]],
            **({"gpus": [gpu_ranges(part) for part in one.gpus[:_NAMED]]} if one.gpus else {}),
            "end_time": one.end_time,
        }
    )


def fabric_text(title: str, structure: str, fabric: Fabric) -> str:
    """A fabric by the digest of its structure, and what of it the operator took out."""
    content, ids = fabric.structure, fabric.structure.nodes.ids
    links = np.flatnonzero(fabric.link_state != State.UP).tolist()
    nodes = np.flatnonzero(fabric.node_state != State.UP).tolist()
    ends = [
        link_name(
            ids[int(content.links.a[row])], ids[int(content.links.b[row])], content.links.key[row]
        )
        for row in links[:_NAMED]
    ]
    return _text(
        {
            "title": title[:256],
            "structure": structure,
            "node_count": fabric.node_count,
            "link_count": fabric.link_count,
            "links_not_up": len(links),
            "links": {
                name[:64]: _word(int(fabric.link_state[row]))
                for name, row in zip(ends, links, strict=False)
            },
            "switches_not_up": len(nodes),
            "switches": {
                ids[row][:64]: _word(int(fabric.node_state[row])) for row in nodes[:_NAMED]
            },
        }
    )


def demands_text(packed: bytes) -> str:
    """A demand set by the digest of its packed form."""
    return _text(digest_of(packed))


def state_text(state: State) -> str:
    """An administrative state."""
    return _text({"admin_state": state.name})


def overlay_text(*, withdrawn: bool) -> str:
    """Whether the overlay is withdrawn."""
    return _text({"overlay": "withdrawn" if withdrawn else "active"})


def rollback_text(rollback: Rollback | None) -> str:
    """Which plan is kept to, and until when; empty where none is."""
    if rollback is None:
        return ""
    return _text({"generation": rollback.generation, "end_time": rollback.end_time})


def digest_of(content: bytes) -> dict[str, Any]:
    """What stands for content that is too large to be told."""
    return {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


def _word(state: int) -> str:
    return State(state).name


def _text(fields: Mapping[str, Any]) -> str:
    return orjson.dumps(fields).decode()
