"""Groups of a switch, one of each kind, and by every link that matters to them.

A link event looks up the groups that name the link and nothing else; it never walks entries.
Groups outlive their entries for a while, because counting references on every push costs more than
a rare sweep.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from heddle_agent.fib import Choice, Group, Link, NextHop
from heddle_agent.table.push import GroupKey


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """All groups of one switch."""

    switch: str
    by_key: Mapping[GroupKey, Group] = field(default_factory=dict)
    by_link: Mapping[Link, tuple[Group, ...]] = field(default_factory=dict)

    def link(self, hop: NextHop) -> Link:
        """The link of this switch that leads to a next hop."""
        return Link.between(self.switch, hop.node, hop.key)

    def links(self, group: Group) -> tuple[Link, ...]:
        """Every link whose state can change where a group leaves."""
        backup = () if group.backup is None else (self.link(group.backup),)
        return (self.link(group.primary), *backup, *group.risks)

    def choose(self, group: Group, down: frozenset[Link]) -> Choice:
        """Where a group leaves when these links are down."""
        if self.link(group.primary) not in down and down.isdisjoint(group.risks):
            return Choice.PRIMARY
        if group.backup is not None and self.link(group.backup) not in down:
            return Choice.BACKUP
        return Choice.UNDERLAY

    def touched(self, links: Iterable[Link]) -> set[Group]:
        """The groups to which any of these links matters."""
        return {group for link in links for group in self.by_link.get(link, ())}


def intern(groups: Groups, keys: Sequence[GroupKey]) -> tuple[Groups, list[Group], list[Group]]:
    """The groups of these keys, in their order, and those among them that are new."""
    fresh: dict[GroupKey, Group] = {}
    found: list[Group] = []
    for key in keys:
        group = groups.by_key.get(key) or fresh.get(key)
        if group is None:
            group = fresh[key] = Group(*key)
        found.append(group)
    if not fresh:
        return groups, found, []
    new = list(fresh.values())
    return _indexed(groups.switch, {**groups.by_key, **fresh}, groups.by_link, new), found, new


def prune(groups: Groups, used: Collection[Group]) -> Groups:
    """Only the groups in use."""
    by_key = {key: group for key, group in groups.by_key.items() if group in used}
    return _indexed(groups.switch, by_key, {}, list(by_key.values()))


def _indexed(
    switch: str,
    by_key: Mapping[GroupKey, Group],
    by_link: Mapping[Link, tuple[Group, ...]],
    new: Iterable[Group],
) -> Groups:
    groups = Groups(switch, by_key, by_link)
    added: defaultdict[Link, list[Group]] = defaultdict(list)
    for group in new:
        for link in groups.links(group):
            added[link].append(group)
    merged = {link: (*by_link.get(link, ()), *more) for link, more in added.items()}
    return Groups(switch, by_key, {**by_link, **merged})
