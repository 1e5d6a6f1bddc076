"""A digest by which agent and controller check that they hold the same entries.

It is SHA-256 over lines. The protocol defines their order and form
(SessionParameters.table_digest).
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from heddle_agent.fib import Group, Match


def table_digest(entries: Mapping[Match, Group]) -> bytes:
    """Return the digest of entries; empty if there are none."""
    if not entries:
        return b""
    ends = {group: _end(group) for group in set(entries.values())}
    lines = [
        f"{source}\t{destination}\t{source_port}\t{destination_port}\t{ends[group]}\n"
        for (source, destination, source_port, destination_port), group in sorted(
            entries.items(), key=lambda item: item[0]
        )
    ]
    return sha256("".join(lines).encode()).digest()


def _end(group: Group) -> str:
    """Return the part of a line that says where an entry leads."""
    backup = ("", "") if group.backup is None else group.backup.port
    risks = sorted(" ".join(link) for link in group.risks)
    if group.backup_risks:
        risks += ["", *sorted(" ".join(link) for link in group.backup_risks)]
    return "\t".join((*group.primary.port, *backup, *risks))
