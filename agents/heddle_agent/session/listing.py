"""The entries of a switch as columns, for a controller that does not know what the switch holds."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Mapping
from sys import byteorder
from typing import TypeVar

from heddle.v1 import agent_pb2 as pb
from heddle_agent.fib import Group, Link, Match

MOST_TOLD = 65_536
"""With more entries than this, none are listed. A message with this many has about 4 MB."""
Item = TypeVar("Item", bound=Hashable)


class Numbers(dict[Item, int]):
    """Numbers items from 0 in the order in which they are first looked up."""

    def __missing__(self, item: Item) -> int:
        number = self[item] = len(self)
        return number

    def optional(self, item: Item | None) -> int:
        """Return the item's number plus 1; 0 for None or an empty item."""
        return self[item] + 1 if item else 0


def listing(held: Mapping[Match, Group]) -> pb.OperationBatch:
    """Return every entry as the operation that would set it, without addresses."""
    names, hops = Numbers[str](), Numbers[tuple[str, str]]()
    links, risks = Numbers[Link](), Numbers[tuple[Link, ...]]()
    ways = Numbers[tuple[int, int, int, int]]()
    row = {group: ways[_way(group, hops, risks)] + 1 for group in set(held.values())}
    ends, members = list[int](), list[int]()
    for links_at_risk in risks:
        members += [links[link] for link in links_at_risk]
        ends.append(len(members))
    # All ways, links and hops have numbers by now. The columns below number the names.
    return pb.OperationBatch(
        sources=_column(names[match[0]] for match in held),
        destinations=_column(names[match[1]] for match in held),
        source_ports=_column(match[2] for match in held),
        destination_ports=_column(match[3] for match in held),
        ways=_column(map(row.__getitem__, held.values())),
        way_primaries=_column(way[0] for way in ways),
        way_backups=_column(way[1] for way in ways),
        way_risks=_column(way[2] for way in ways),
        way_backup_risks=_column(way[3] for way in ways),
        hop_nodes=_column(names[node] for node, _ in hops),
        hop_keys=_column(names[key] for _, key in hops),
        risk_ends=_column(ends),
        risk_links=_column(members),
        link_sources=_column(names[link.source] for link in links),
        link_targets=_column(names[link.target] for link in links),
        link_keys=_column(names[link.key] for link in links),
        names=names,  # last, because the columns above fill it
    )


def _way(
    group: Group, hops: Numbers[tuple[str, str]], risks: Numbers[tuple[Link, ...]]
) -> tuple[int, int, int, int]:
    backup = group.backup and hops.optional(group.backup.port)
    return (
        hops[group.primary.port],
        backup or 0,
        risks.optional(group.risks),
        risks.optional(group.backup_risks),
    )


def _column(numbers: Iterable[int]) -> bytes:
    column = array("I", numbers)
    if byteorder == "big":
        column.byteswap()
    return column.tobytes()
