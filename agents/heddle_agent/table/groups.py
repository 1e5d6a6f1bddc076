"""Groups of a switch, one of each kind, and by every link that matters to them.

A link event looks up the groups that name the link, and walks at most ``FEW`` others that are too
new to be in the index: most go again without ever having been looked for, and until then nobody
has worked out what they depend on. It never walks entries.
Groups outlive their entries for a while, because counting references on every push costs more than
a rare sweep.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import is_, itemgetter

from heddle_agent.fib import Choice, Group, Link, NextHop
from heddle_agent.table.push import GroupKey, PushTargets

FEW = 512
"""Groups that are walked in less time than anybody would notice a lost link in."""
_PERILS = itemgetter(2)


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """All groups of one switch."""

    switch: str
    own: dict[NextHop, Link] = field(default_factory=dict)
    """Links of this switch by next hop, as far as they were asked for: a memo."""
    by_key: Mapping[GroupKey, Group] = field(default_factory=dict)
    """Those whose risks were known when they came: of several that are alike, one."""
    by_link: Mapping[Link, tuple[Group, ...]] = field(default_factory=dict)
    new: tuple[Group, ...] = ()
    """Those that are not in ``by_link`` yet."""

    def link(self, hop: NextHop) -> Link:
        """The link of this switch that leads to a next hop."""
        link = self.own.get(hop)
        if link is None:
            link = self.own[hop] = Link.between(self.switch, hop.node, hop.key)
        return link

    def choose(self, group: Group, down: frozenset[Link]) -> Choice:
        """Which choice a group uses when these links are down."""
        if self.link(group.primary) not in down and down.isdisjoint(group.risks):
            return Choice.PRIMARY
        backup = group.backup
        if backup is not None and self.link(backup) not in down:
            return Choice.BACKUP if down.isdisjoint(group.backup_risks) else Choice.UNDERLAY
        return Choice.UNDERLAY

    def touched(self, links: Iterable[Link]) -> set[Group]:
        """The groups to which any of these links matters."""
        links = set(links)
        found = {group for link in links for group in self.by_link.get(link, ())}
        for group in self.new:
            if not links.isdisjoint(self.naming(group)):
                found.add(group)
        return found

    def naming(self, group: Group) -> set[Link]:
        """The links that matter to a group."""
        primary, backup, link_risks, row = group
        risks, backup_risks = link_risks.rows[row]
        links = {self.own.get(primary) or self.link(primary), *risks, *backup_risks}
        if backup is not None:
            links.add(self.own.get(backup) or self.link(backup))
        return links

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
        lost = frozenset(links)
        for group in self.touched(lost):
            if not lost.isdisjoint(group.risks):
                found.add(group.primary.port)
            if group.backup is not None and not lost.isdisjoint(group.backup_risks):
                found.add(group.backup.port)
        return found


def intern(groups: Groups, keys: Sequence[GroupKey]) -> tuple[Groups, list[Group], list[Group]]:
    """The groups of these keys, in their order, and those among them that are new.

    Keys whose risks nobody has looked at yet are not compared: their groups are new.
    """
    ways = PushTargets.of(keys)
    made = ways.groups()
    if not ways.link_risks.known:
        return _with(groups, groups.by_key, made), made, made
    by_key = dict(groups.by_key)
    found = list(map(by_key.setdefault, ways, made))
    new = list(compress(found, map(is_, found, made)))
    return (_with(groups, by_key, new) if new else groups), found, new


def key_of(group: Group) -> GroupKey:
    """All in which a group differs from others."""
    return (group.primary, group.backup, group.risks, group.backup_risks)


def only(groups: Groups, kept: Iterable[Group]) -> Groups:
    """These groups and no others."""
    unique = list(dict.fromkeys(kept))
    by_key: dict[GroupKey, Group] = {}
    if any(link_risks.known for link_risks in {*map(_PERILS, unique)}):
        for group in unique:
            if group.known:
                by_key.setdefault(key_of(group), group)
    return _with(Groups(groups.switch, groups.own), by_key, unique)


def _with(groups: Groups, by_key: Mapping[GroupKey, Group], more: Sequence[Group]) -> Groups:
    """Groups, some of them new: in the index once they are no longer few."""
    new = (*groups.new, *more)
    if len(new) <= FEW:
        return Groups(groups.switch, groups.own, by_key, groups.by_link, new)
    added: defaultdict[Link, list[Group]] = defaultdict(list)
    for group in new:
        for link in groups.naming(group):
            added[link].append(group)
    by_link = groups.by_link
    merged = {link: (*by_link.get(link, ()), *more) for link, more in added.items()}
    return Groups(groups.switch, groups.own, by_key, {**by_link, **merged})
