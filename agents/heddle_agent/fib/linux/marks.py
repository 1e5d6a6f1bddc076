"""The numbers that are ours on a machine: marks, rules, tables, and the protocol of our routes.

A mark holds a tag, by which our rules recognise it, and two slots, of the primary and of the backup
next hop. The rules of all primaries come first, then those of all backups. A table without a usable
route (deleted, or over a link without carrier) is skipped, and the main table comes last: the
underlay. So in each address family, a switch with n links has 2n rules, two shared ones and n
tables of one route each. The kernel alone falls from primary to backup when a carrier is lost.
"""

from __future__ import annotations

TAG = 0x48 << 24
TAG_MASK = 0xFF << 24
PRIMARY_SHIFT = 12
SLOT_MASK = 0xFFF
SLOTS = range(1, SLOT_MASK)
DETOUR = SLOT_MASK
"""A slot that no next hop uses. Its table leads around lost links (``detours``)."""
UNDERLAY = 0

PROTOCOL = 0x48  # marks our routes and rules; no kernel or routing daemon uses it
TABLES = 0x48 << 24  # plus the slot, this is the number of its table
METRIC = 10
PASS_BY, BY_PRIMARY, BY_BACKUP, PASSED = range(17200, 17204)
"""Preferences of our rules: skip the others, primaries, backups, and the target of the skip."""


def mark(primary: int, backup: int) -> int:
    """Return the mark of two slots, each 0 for none; with no slot it is the underlay's, 0."""
    return TAG | primary << PRIMARY_SHIFT | backup if primary or backup else UNDERLAY


def slots(value: int) -> tuple[int, int]:
    """Return primary and backup slot of a mark; zeros if it is not ours."""
    if value & TAG_MASK != TAG:
        return 0, 0
    return value >> PRIMARY_SHIFT & SLOT_MASK, value & SLOT_MASK


def leaves(value: int, empty: frozenset[int]) -> list[int]:
    """Return the slots that packets of a mark try in turn, without those whose tables are empty.

    After the last one, packets follow the underlay.
    """
    return [slot for slot in slots(value) if slot and slot not in empty]
