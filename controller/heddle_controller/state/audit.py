"""The audit trail: who changed what, as a chain of hashes that reveals later tampering.

Every change that a client makes adds one record, in the same transaction, so neither exists without
the other. Observations of agents and facts found by the leader are not recorded.

The hash of each record covers the hash of the one before. So a record that is altered, removed,
inserted or moved breaks the chain from there on. The chain alone cannot show that its end was cut
off, or that somebody with access to the whole store made it anew. For that, a ``Mark`` (number and
hash, one short word) is noted elsewhere and compared later.

The *content* of a record is hashed by itself and then linked:

    content = SHA-256 over its seven texts, each preceded by its length in bytes (8, big-endian):
              time in microseconds, actor, request, action, name, before, after
    hash    = SHA-256 over the previous hash (32 bytes), the number (8, big-endian), content

The controller that writes a record computes its hash. A Redis only refuses a record that does not
follow its newest one. Growth is bounded: the oldest records are dropped, and the mark of the last
one dropped stays as the anchor that the rest is verified against.

A record describes the thing before and after the change as JSON. Small things (a job, a state) are
complete. Large ones (a fabric, a demand set, a job with thousands of hosts) are described by their
digest and the facts that people ask for first, which keeps records small (see ``_MOST``). Etags and
versions are left out, because they belong to the store and not to what the client wanted.
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
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.job import Job
from heddle_controller.state.codec.container import parser
from heddle_controller.state.codec.intent import job_json
from heddle_controller.state.records import Reservation, Rollback

GENESIS = bytes(32)
"""The hash before the first record."""

_MARK = re.compile(r"([0-9]{1,18}):([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A record of a change, without its number and hash."""

    time: float
    """Unix seconds, with a precision of microseconds."""
    actor: str
    """Role and identity of the caller, such as "operator spiffe://heddle/operator/ann"."""
    request: str
    """Id that the client gave the request, or otherwise the id of the call in the logs."""
    action: str
    """Method of ``Store``, such as "submit_job"."""
    name: str
    """Full name of what was changed, such as "fabrics/f1/jobs/j1"."""
    before: str
    """JSON; empty if the thing did not exist."""
    after: str
    """JSON; empty if the thing no longer exists."""

    def content(self) -> bytes:
        """Return the hash of the entry's content, 32 bytes."""
        digest = hashlib.sha256()
        texts = (self.actor, self.request, self.action, self.name, self.before, self.after)
        for text in (str(round(self.time * 1e6)), *texts):
            raw = text.encode("utf-8", "surrogatepass")
            digest.update(len(raw).to_bytes(8, "big") + raw)
        return digest.digest()


parse_entry = parser(AuditEntry, "record of the audit trail")


@dataclass(frozen=True, slots=True)
class Mark:
    """A position in the chain: the number and the hash of a record."""

    number: int = 0
    hash: bytes = GENESIS

    def __str__(self) -> str:
        return f"{self.number}:{self.hash.hex()}"

    def follow(self, content: bytes) -> Mark:
        """Return the mark after one more record with this content hash."""
        number = self.number + 1
        linked = hashlib.sha256(self.hash + number.to_bytes(8, "big") + content)
        return Mark(number, linked.digest())


def parse_mark(text: str) -> Mark:
    """Parse the text that ``str()`` of a mark gives.

    Raises:
        ValueError: the text does not have this form; the message describes it.
    """
    found = _MARK.fullmatch(text.strip())
    if found is None:
        msg = f"{text!r} is not a mark: give NUMBER:HASH as 'heddle audit list' prints it"
        raise ValueError(msg)
    return Mark(int(found[1]), bytes.fromhex(found[2]))


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """An entry with its number and hash."""

    number: int
    """Counted from 1 across the whole store, without gaps."""
    hash: bytes
    entry: AuditEntry


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Part of the trail, with the marks that it is verified against."""

    anchor: Mark
    """Mark of the last record that was dropped; ``Mark()`` if none was."""
    head: Mark
    """Mark of the newest record."""
    records: tuple[AuditRecord, ...]
    """In order of their numbers."""


class AuditBroken(Exception):  # noqa: N818 - a finding, not a fault of the program
    """The chain is broken. ``number`` is the first record that does not fit."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"record {number}: {reason}")
        self.number = number


def verify(start: Mark, records: Iterable[AuditRecord], known: Mark | None = None) -> Mark:
    """Verify that records follow ``start`` without gaps, and return the mark of the last one.

    Args:
        start: Mark before the first record: the anchor, or the end of a verified part.
        records: The records, in order.
        known: A mark noted earlier. If its number lies between ``start`` and the last record, the
            chain must contain it.

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
"""Most bytes of the JSON of a job in a record; a longer one is replaced by its digest."""
_NAMED = 20
"""Most links, switches or hosts that a record names."""


def job_text(job: Job) -> str:
    """Describe a job: all of it, or if it is too long its name, size and digest."""
    content = job_json(job)
    if len(content) <= _MOST:
        return content.decode()
    some = {"host_count": len(job.hosts), "gpus_per_host": job.gpus_per_host}
    return _text({"name": job.name[:256], **some, **digest_of(content)})


def reservation_text(one: Reservation) -> str:
    """Describe a reservation: its number of hosts, the first of them, and its end."""
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
    """Describe a fabric: digest of its structure, sizes, and links and switches not UP."""
    ids = fabric.structure.nodes.ids
    links = np.flatnonzero(fabric.link_state != State.UP).tolist()
    nodes = np.flatnonzero(fabric.node_state != State.UP).tolist()
    return _text(
        {
            "title": title[:256],
            "structure": structure,
            "node_count": fabric.node_count,
            "link_count": fabric.link_count,
            "links_not_up": len(links),
            "links": {
                fabric.link_name(row)[:64]: _word(int(fabric.link_state[row]))
                for row in links[:_NAMED]
            },
            "switches_not_up": len(nodes),
            "switches": {
                ids[row][:64]: _word(int(fabric.node_state[row])) for row in nodes[:_NAMED]
            },
        }
    )


def demands_text(packed: bytes) -> str:
    """Describe a demand set by the digest of its packed form."""
    return _text(digest_of(packed))


def state_text(state: State) -> str:
    """Describe an administrative state."""
    return _text({"admin_state": state.name})


def overlay_text(*, withdrawn: bool) -> str:
    """Describe whether the overlay is withdrawn."""
    return _text({"overlay": "withdrawn" if withdrawn else "active"})


def rollback_text(rollback: Rollback | None) -> str:
    """Describe a rollback by its plan and its end; empty if there is none."""
    if rollback is None:
        return ""
    return _text({"generation": rollback.generation, "end_time": rollback.end_time})


def digest_of(content: bytes) -> dict[str, Any]:
    """Return the digest and size of content that is too large for a record."""
    return {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


def _word(state: int) -> str:
    return State(state).name


def _text(fields: Mapping[str, Any]) -> str:
    return orjson.dumps(fields).decode()
