"""Groups of a switch, one of each kind, and by every link that matters to them.

A link event looks up the groups that name the link and nothing else; it never walks entries.
Groups outlive their entries for a while, because counting references on every push costs more than
a rare sweep.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from heddle_agent.fib import Choice, Group, Link, NextHop
from heddle_agent.table.push import GroupKey


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """All groups of one switch."""

    switch: str
    own: dict[NextHop, Link] = field(default_factory=dict)
    """Links of this switch by next hop, as far as they were asked for: a memo."""
    by_key: Mapping[GroupKey, Group] = field(default_factory=dict)
    by_link: Mapping[Link, tuple[Group, ...]] = field(default_factory=dict)

    def link(self, hop: NextHop) -> Link:
        """The link of this switch that leads to a next hop."""
        link = self.own.get(hop)
        if link is None:
            link = self.own[hop] = Link.between(self.switch, hop.node, hop.key)
        return link

    def choose(self, group: Group, down: frozenset[Link]) -> Choice:
        """Where a group leaves when these links are down."""
        if self.link(group.primary) not in down and down.isdisjoint(group.risks):
            return Choice.PRIMARY
        backup = group.backup
        if backup is not None and self.link(backup) not in down:
            return Choice.BACKUP if down.isdisjoint(group.backup_risks) else Choice.UNDERLAY
        return Choice.UNDERLAY

    def touched(self, links: Iterable[Link]) -> set[Group]:
        """The groups to which any of these links matters."""
        return {group for link in links for group in self.by_link.get(link, ())}

    def meeting(
        self, lost: frozenset[Link], down: frozenset[Link], local: Collection[tuple[str, str]]
    ) -> set[tuple[str, str]]:
        """Next hops from which flows might meet a lost link, as far as we can tell.

        ``lost`` are those of the flows' own ways. Others that end where one of these does are
        likely on other ways to the same destinations: whatever leads over them, or is next to them,
        is to be kept off. ``local`` are all links of this switch, as neighbour and key.
        """
        ends = {end for link in lost for end in link[:2]}
        near = [link for link in down if self.switch in link[:2] or not ends.isdisjoint(link[:2])]
        nodes = {end for link in near for end in link[:2] if self.switch not in link[:2]}
        return {port for port in local if port[0] in nodes} | self.leading_over(near)

    def leading_over(self, links: Collection[Link]) -> set[tuple[str, str]]:
        """Next hops, as neighbour and key, from which any group comes to one of these links."""
        found = {
            (link.target if link.source == self.switch else link.source, link.key)
            for link in links
            if self.switch in link[:2]
        }
        for link in links:
            for group in self.by_link.get(link, ()):
                if link in group.risks:
                    found.add(group.primary.port)
                if group.backup is not None and link in group.backup_risks:
                    found.add(group.backup.port)
        return found


def intern(groups: Groups, keys: Sequence[GroupKey]) -> tuple[Groups, list[Group], list[Group]]:
    """The groups of these keys, in their order, and those among them that are new."""
    found: list[Group] = []
    new: list[Group] = []
    by_key = groups.by_key
    for key in keys:
        group = by_key.get(key)
        if group is None:
            if not new:
                by_key = dict(by_key)
            group = by_key[key] = Group(*key)  # type: ignore[index]
            new.append(group)
        found.append(group)
    return (_indexed(groups, by_key, groups.by_link, new) if new else groups), found, new


def key_of(group: Group) -> GroupKey:
    """All in which a group differs from others."""
    return (group.primary, group.backup, group.risks, group.backup_risks)


def only(groups: Groups, kept: Iterable[Group]) -> Groups:
    """These groups and no others; of several that are alike, the first."""
    by_key: dict[GroupKey, Group] = {}
    for group in kept:
        by_key.setdefault(key_of(group), group)
    return _indexed(groups, by_key, {}, by_key.values())


def _indexed(
    groups: Groups,
    by_key: Mapping[GroupKey, Group],
    by_link: Mapping[Link, tuple[Group, ...]],
    new: Iterable[Group],
) -> Groups:
    added: defaultdict[Link, list[Group]] = defaultdict(list)
    own = groups.own.get  # spares most calls of groups.link
    for group in new:
        primary, backup = group.primary, group.backup
        added[own(primary) or groups.link(primary)].append(group)
        if backup is not None:
            added[own(backup) or groups.link(backup)].append(group)
        for link in {*group.risks, *group.backup_risks}:
            added[link].append(group)
    merged = {link: (*by_link.get(link, ()), *more) for link, more in added.items()}
    return replace(groups, by_key=by_key, by_link={**by_link, **merged})
