"""The groups of a switch, indexed by every link that they depend on.

A link event looks up the groups that depend on the link. It also walks at most ``FEW`` groups that
are too new to be in the index. Most groups are removed again before any link event, so their risks
need not be computed at once. A link event never walks entries. Equal groups are merged if their
risks are known. Groups outlive their entries for a while, because counting references on every push
costs more than a rare sweep.
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
"""Number of groups that can be walked without noticeably delaying the repair of a lost link."""
_PERILS = itemgetter(2)


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """All groups of one switch."""

    switch: str
    own: dict[NextHop, Link] = field(default_factory=dict)
    """Links of this switch by next hop: a memo that ``link`` fills."""
    by_key: Mapping[GroupKey, Group] = field(default_factory=dict)
    """Groups whose risks were known when they were added; of several equal groups, only one."""
    by_link: Mapping[Link, tuple[Group, ...]] = field(default_factory=dict)
    new: tuple[Group, ...] = ()
    """Groups that are not in ``by_link`` yet."""

    def link(self, hop: NextHop) -> Link:
        """Return the link of this switch that leads to a next hop."""
        link = self.own.get(hop)
        if link is None:
            link = self.own[hop] = Link.between(self.switch, hop.node, hop.key)
        return link

    def choose(self, group: Group, down: frozenset[Link]) -> Choice:
        """Return the choice that a group uses when these links are down."""
        if self.link(group.primary) not in down and down.isdisjoint(group.risks):
            return Choice.PRIMARY
        backup = group.backup
        if backup is not None and self.link(backup) not in down:
            return Choice.BACKUP if down.isdisjoint(group.backup_risks) else Choice.UNDERLAY
        return Choice.UNDERLAY

    def touched(self, links: Iterable[Link]) -> set[Group]:
        """Return the groups that depend on any of these links."""
        links = set(links)
        found = {group for link in links for group in self.by_link.get(link, ())}
        for group in self.new:
            if not links.isdisjoint(self.naming(group)):
                found.add(group)
        return found

    def naming(self, group: Group) -> set[Link]:
        """Return the links that a group depends on."""
        primary, backup, link_risks, row = group
        risks, backup_risks = link_risks.rows[row]
        links = {self.own.get(primary) or self.link(primary), *risks, *backup_risks}
        if backup is not None:
            links.add(self.own.get(backup) or self.link(backup))
        return links

    def meeting(
        self, lost: frozenset[Link], down: frozenset[Link], local: Collection[tuple[str, str]]
    ) -> set[tuple[str, str]]:
        """Return next hops from which flows might meet a lost link, as far as this switch can tell.

        ``lost`` are the lost links on the flows' own paths, ``down`` all lost links. Lost links
        that share an end with a link in ``lost``, and lost links of this switch, may lie on other
        paths to the same destinations. So next hops that lead over such links, or to an end of one,
        are included. ``local`` are all links of this switch, as neighbour and key, and so is the
        result.
        """
        ends = {end for link in lost for end in link[:2]}
        near = [link for link in down if self.switch in link[:2] or not ends.isdisjoint(link[:2])]
        nodes = {end for link in near for end in link[:2] if self.switch not in link[:2]}
        return {port for port in local if port[0] in nodes} | self.leading_over(near)

    def leading_over(self, links: Collection[Link]) -> set[tuple[str, str]]:
        """Return next hops (neighbour, key) from which any group leads over one of these links."""
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
    """Return the updated groups, the group of each key in order, and those that are new.

    Keys whose risks are not computed yet are not compared: their groups all count as new.
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
    """Return everything in which a group can differ from others."""
    return (group.primary, group.backup, group.risks, group.backup_risks)


def only(groups: Groups, kept: Iterable[Group]) -> Groups:
    """Return a copy of ``groups`` that contains only the kept groups."""
    unique = list(dict.fromkeys(kept))
    by_key: dict[GroupKey, Group] = {}
    if any(link_risks.known for link_risks in {*map(_PERILS, unique)}):
        for group in unique:
            if group.known:
                by_key.setdefault(key_of(group), group)
    return _with(Groups(groups.switch, groups.own), by_key, unique)


def _with(groups: Groups, by_key: Mapping[GroupKey, Group], more: Sequence[Group]) -> Groups:
    """Add groups; once more than ``FEW`` are not in the index, add all of them to it."""
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
