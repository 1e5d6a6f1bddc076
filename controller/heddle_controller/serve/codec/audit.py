"""Conversion of audit records and marks to messages, and back for clients that verify them."""

from __future__ import annotations

from heddle.v1 import audit_pb2 as pb
from heddle_controller.model.errors import refuse
from heddle_controller.serve.codec import times
from heddle_controller.state.audit import AuditEntry, AuditRecord, Mark

HASH_BYTES = 32


def audit_record_to_pb(record: AuditRecord) -> pb.AuditRecord:
    """Return an audit record as a message."""
    entry = record.entry
    return pb.AuditRecord(
        number=record.number,
        hash=record.hash,
        time=times.time_to_pb(entry.time),
        actor=entry.actor,
        request=entry.request,
        action=entry.action,
        name=entry.name,
        before=entry.before,
        after=entry.after,
    )


def record_from_pb(record: pb.AuditRecord) -> AuditRecord:
    """Return the record of a message; whether it fits into its chain is not checked."""
    entry = AuditEntry(
        time=times.time_from_pb(record.time),
        actor=record.actor,
        request=record.request,
        action=record.action,
        name=record.name,
        before=record.before,
        after=record.after,
    )
    return AuditRecord(record.number, record.hash, entry)


def mark_to_pb(mark: Mark) -> pb.AuditMark:
    """Return a mark as a message."""
    return pb.AuditMark(number=mark.number, hash=mark.hash)


def mark_from_pb(mark: pb.AuditMark) -> Mark:
    """Return the mark of a message.

    Raises:
        InputError: its hash does not have ``HASH_BYTES`` bytes.
    """
    if len(mark.hash) != HASH_BYTES:
        raise refuse("audit mark", "hash", f"has {len(mark.hash)} bytes, not {HASH_BYTES}")
    return Mark(mark.number, mark.hash)
