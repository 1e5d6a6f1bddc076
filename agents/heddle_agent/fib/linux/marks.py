"""The numbers that are ours on a box: marks, rules, tables, and the protocol of our routes.

A mark holds a tag, by which our rules know it, and two slots: that of the primary next hop and
that of the backup. First every primary's rule is tried, then every backup's; a table without a
usable route (deleted, or over a link without carrier) is passed over, and in the end there is the
main table: the underlay. So a switch with n links has 2n rules and n tables of one route each, and
the kernel by itself falls from primary to backup when a carrier goes.
"""

from __future__ import annotations

TAG = 0x48 << 24
TAG_MASK = 0xFF << 24
PRIMARY_SHIFT = 12
SLOT_MASK = 0xFFF
SLOTS = range(1, SLOT_MASK)
DETOUR = SLOT_MASK
"""The slot of no next hop: its table leads around lost links (``detours``)."""
UNDERLAY = 0

PROTOCOL = 0x48  # of our routes and rules: neither the kernel's nor any routing daemon's
TABLES = 0x48 << 24  # the table of a slot is this plus the slot
METRIC = 10
PASS_BY, BY_PRIMARY, BY_BACKUP, PASSED = range(17200, 17204)
"""Preferences of our rules: skip ours, those of primaries, those of backups, landing."""


def mark(primary: int, backup: int) -> int:
    """The mark of a way over two slots, each 0 for none; without any it is the underlay's."""
    return TAG | primary << PRIMARY_SHIFT | backup if primary or backup else UNDERLAY


def slots(value: int) -> tuple[int, int]:
    """Primary and backup slot of a mark."""
    if value & TAG_MASK != TAG:
        return 0, 0
    return value >> PRIMARY_SHIFT & SLOT_MASK, value & SLOT_MASK


def leaves(value: int, empty: frozenset[int]) -> list[int]:
    """The slots that packets of a mark are offered to, in turn, while some tables are empty.

    After the last it is the underlay's turn.
    """
    return [slot for slot in slots(value) if slot and slot not in empty]
