"""Audit records between the wire and ``reconcile.audit``; both ways, for those who verify."""

from __future__ import annotations

from heddle.v1 import audit_pb2 as pb
from heddle_controller.model.errors import refuse
from heddle_controller.serve.codec import common
from heddle_controller.state.audit import AuditEntry, AuditRecord, Mark

HASH_BYTES = 32


def audit_record_to_pb(record: AuditRecord) -> pb.AuditRecord:
    """For the wire."""
    entry = record.entry
    return pb.AuditRecord(
        number=record.number,
        hash=record.hash,
        time=common.time_to_pb(entry.time),
        actor=entry.actor,
        request=entry.request,
        action=entry.action,
        name=entry.name,
        before=entry.before,
        after=entry.after,
    )


def record_from_pb(record: pb.AuditRecord) -> AuditRecord:
    """A record from the wire; whether it fits its chain is another question."""
    entry = AuditEntry(
        time=common.time_from_pb(record.time),
        actor=record.actor,
        request=record.request,
        action=record.action,
        name=record.name,
        before=record.before,
        after=record.after,
    )
    return AuditRecord(record.number, record.hash, entry)


def mark_to_pb(mark: Mark) -> pb.AuditMark:
    """For the wire."""
    return pb.AuditMark(number=mark.number, hash=mark.hash)


def mark_from_pb(mark: pb.AuditMark) -> Mark:
    """A mark from the wire.

    Raises:
        InputError: its hash has another length.
    """
    if len(mark.hash) != HASH_BYTES:
        raise refuse("audit mark", "hash", f"has {len(mark.hash)} bytes, not {HASH_BYTES}")
    return Mark(mark.number, mark.hash)
