"""What agents say of their links now. Soft: in memory, each controller's from its own sessions.

A link is DOWN while the agent at either end says so. What an agent said last counts until it says
something else, also while it has no session: whoever is silent has not said that a link is back.

- Reports of a session that another has replaced are late, and ignored.
- Within an instance of an agent, an observation with a sequence not above the one kept is ignored.
- The first report of another instance replaces all that the one before had said.
- A full report forgets what the same agent said of links that it does not name.
- An agent speaks for links that end at its switch, and for no others.

Where switches hash, hosts say which path each source port of their NICs takes. That is soft, too:
hosts tell every controller again and again, and what a plan was made with is in its ports.

So is what switches count of flows that nobody announced: see ``unannounced``.

A controller that has just begun to lead knows less than the last plan did. What that held to be
down stays down until the agents at both ends have told all their links in sessions that stand, or
until patience is over: see ``undecided``. What is told to be down is believed at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from heddle_controller.model.arrays import Ints
from heddle_controller.model.fabric import Fabric, NodeKind, State, Structure
from heddle_controller.model.port_paths import PortPaths, joined_port_paths, no_port_paths
from heddle_controller.reconcile.ports import AgentSession, LinkReport
from heddle_controller.reconcile.unannounced import (
    FoundFlows,
    PairRates,
    Unannounced,
    UnannouncedTerms,
)
from heddle_controller.state.records import Intent, LinkName
from heddle_controller.store.applier import Feed

LinkEnds: TypeAlias = tuple[str, str, str]
"""Lesser node id, greater node id, key as text."""


def link_ends(link: LinkName) -> LinkEnds:
    """A link's name in a form that compares."""
    low, high = sorted((link.source, link.target))
    return low, high, str(link.key)


@dataclass(slots=True)
class _Said:
    """What one agent said last."""

    session: int
    """The newest one."""
    stands: bool = True
    """Whether it goes on."""
    instance: str = ""
    links: dict[LinkEnds, int] = field(default_factory=dict)
    """Sequence of what was said of each; a number is nothing to the garbage collector."""
    down: set[LinkEnds] = field(default_factory=set)
    """Those that are DOWN."""

    def forget(self, ends: LinkEnds) -> None:
        """Nothing is said of a link any more."""
        del self.links[ends]
        self.down.discard(ends)


@dataclass(frozen=True, slots=True)
class SeenLinks:
    """Links of one fabric, by row, at one moment."""

    down: frozenset[int] = frozenset()
    since: Mapping[int, float] = field(default_factory=dict)
    """When the state last changed, Unix seconds; links that never changed are absent."""


@dataclass(frozen=True, slots=True, eq=False)
class PortReport:
    """Paths of source ports that a host found out, where switches hash."""

    structure: Structure
    """The one that all rows are of; what was told of another counts no more."""
    source: Ints
    """Pairs of NICs it is about, parallel with ``destination``; none else is spoken of."""
    destination: Ints
    known: PortPaths


class LinkStates:
    """Link states of one fabric; a live view, which each report changes by what it says."""

    def __init__(self, terms: UnannouncedTerms | None = None) -> None:
        self.unannounced = Unannounced(terms)
        self.version = 0
        """Grows whenever the state of a link changes."""
        self.change_time = 0.0
        """When that last was, Unix seconds; 0 for never."""
        self._said: dict[str, _Said] = {}
        self._down: dict[LinkEnds, frozenset[str]] = {}
        """Which switches say so."""
        self._since: dict[LinkEnds, float] = {}
        self._heard: set[str] = set()
        self._ports: dict[str, PortReport] = {}
        """By host; these are the hosts of one structure, mostly."""
        self._all_ports: tuple[Structure, PortPaths] | None = None

    def report_ports(self, host: str, told: PortReport) -> bool:
        """Take in what a host found out of source ports; whether anything changed by it."""
        before = self._ports.get(host)
        if before is not None and before.structure is told.structure:
            known = before.known.without(told.source, told.destination)
            ports = joined_port_paths([known, told.known])
            if ports.same_as(before.known):
                return False
            told = replace(told, known=ports)
        self._ports[host] = told
        self._all_ports = None
        return True

    def ports_of(self, host: str, structure: Structure) -> PortPaths:
        """What a host told of the ports of its NICs, as far as it is about this structure."""
        told = self._ports.get(host)
        return told.known if told and told.structure is structure else no_port_paths()

    def with_ports(self, fabric: Fabric) -> Fabric:
        """The fabric with what all hosts told; the same object while nothing changes."""
        if not self._ports:
            return fabric
        structure = fabric.structure
        if self._all_ports is None or self._all_ports[0] is not structure:
            parts = [self.ports_of(host, structure) for host in sorted(self._ports)]
            self._all_ports = structure, joined_port_paths(parts)
        return replace(fabric, port_paths=self._all_ports[1])

    def tells_ports(self, known: PortPaths | None) -> bool:
        """Whether what all hosts told is what ``with_ports`` gave last, and is this."""
        if known is None:
            return not self._ports
        return self._all_ports is not None and self._all_ports[1] is known

    @property
    def down(self) -> AbstractSet[LinkEnds]:
        """Links that are DOWN."""
        return self._down.keys()

    @property
    def heard(self) -> AbstractSet[str]:
        """Switches whose agents have told all their links in a session that stands."""
        return self._heard

    def with_unannounced(self, intent: Intent, found: FoundFlows | None = None) -> Intent:
        """The intent with flows that nobody announced: those of ``found``, or of this moment."""
        record = (found or self.unannounced.flows).record(intent.fabric.structure)
        return replace(intent, demands=(*intent.demands, record)) if record else intent

    def seen(self, fabric: Fabric) -> SeenLinks:
        """The same by row; takes as long as there are links that ever changed."""
        since = {row: self._since[ends] for ends in self._since for row in fabric.find_links(*ends)}
        return SeenLinks(frozenset(_rows(fabric, self._down)), since)

    def joined(self, about: AgentSession) -> None:
        """A session begins; nothing is told in it yet."""
        said = self._said.setdefault(about.switch, _Said(about.id))
        if about.id >= said.session:
            said.session, said.stands = about.id, True
            self._heard.discard(about.switch)

    def left(self, about: AgentSession) -> None:
        """A session is over; what was said in it still counts."""
        said = self._said.get(about.switch)
        if said is not None and about.id >= said.session:
            said.session, said.stands = about.id, False
            self._heard.discard(about.switch)

    def report(self, about: AgentSession, report: LinkReport, now: float) -> bool:
        """Take in what an agent says; whether the state of any link changed by it."""
        switch = about.switch
        said = self._said.setdefault(switch, _Said(about.id))
        if about.id < said.session:
            return False
        if about.id > said.session:
            said.session, said.stands = about.id, True
        told = {
            link_ends(one.link): (one.state, one.sequence)
            for one in report.links
            if switch in (one.link.source, one.link.target)
        }
        turned: set[LinkEnds] = set()
        if about.instance != said.instance:
            said.instance, turned = about.instance, set(said.links)
        elif report.full:
            turned = said.links.keys() - told.keys()
        for ends in turned:
            said.forget(ends)
        for ends, (state, sequence) in told.items():
            if ends not in said.links or sequence > said.links[ends]:
                said.links[ends] = sequence
                (said.down.add if state is State.DOWN else said.down.discard)(ends)
                turned.add(ends)
        if report.full and said.stands:
            self._heard.add(switch)
        return self._turned(switch, said, turned, now)

    def _turned(self, switch: str, said: _Said, turned: AbstractSet[LinkEnds], now: float) -> bool:
        """Judge links anew that a switch says something else about now."""
        changed = False
        for ends in turned:
            who = self._down.get(ends, frozenset())
            after = who | {switch} if ends in said.down else who - {switch}
            if after:
                self._down[ends] = after
            else:
                self._down.pop(ends, None)
            if bool(who) is not bool(after):
                self._since[ends] = now
                changed = True
        if changed:
            self.version += 1
            self.change_time = now
        return changed


class Observations:
    """What agents of all fabrics say."""

    def __init__(self, unannounced: UnannouncedTerms | None = None) -> None:
        self._unannounced = unannounced or UnannouncedTerms()
        self._fabrics: dict[str, LinkStates] = {}
        self._feed = Feed[str]()

    def of(self, fabric: str) -> LinkStates:
        """What is known of a fabric."""
        known = self._fabrics.get(fabric)
        if known is None:
            known = self._fabrics[fabric] = LinkStates(self._unannounced)
        return known

    def joined(self, about: AgentSession) -> None:
        """A session begins."""
        self.of(about.fabric).joined(about)

    def left(self, about: AgentSession) -> None:
        """A session is over."""
        self.of(about.fabric).left(about)

    def report(self, about: AgentSession, report: LinkReport, now: float) -> None:
        """Take in what an agent says; ``now`` in Unix seconds."""
        if self.of(about.fabric).report(about, report, now) or report.full:
            self._feed.tell(about.fabric, about.fabric)

    def report_ports(self, fabric: str, host: str, told: PortReport) -> None:
        """Take in what a host found out of source ports."""
        if self.of(fabric).report_ports(host, told):
            self._feed.tell(fabric, fabric)

    def report_pairs(self, about: AgentSession, told: PairRates, now: float, wall: float) -> None:
        """Take in what a switch counted of pairs that nobody announced; see ``Unannounced``."""
        if self.of(about.fabric).unannounced.report(about.switch, told, now, wall):
            self._feed.tell(about.fabric, about.fabric)

    def changes(self) -> AsyncIterator[str]:
        """Names of fabrics that something is told about from now on; coalesced, and never ends."""
        return self._feed.follow()


def _rows(fabric: Fabric, links: Iterable[LinkEnds]) -> Iterable[int]:
    for low, high, key in links:
        yield from fabric.find_links(low, high, key)


def with_down(fabric: Fabric, down: Iterable[LinkEnds]) -> Fabric:
    """The fabric with some of its links DOWN; links that it lacks are left out."""
    return fabric.with_links(dict.fromkeys(_rows(fabric, down), State.DOWN))


def held_down(fabric: Fabric) -> frozenset[LinkEnds]:
    """Links that are DOWN in a plan's fabric."""
    links, ids = fabric.structure.links, fabric.structure.nodes.ids
    return frozenset(
        link_ends(LinkName(ids[int(links.a[row])], ids[int(links.b[row])], links.key[row]))
        for row in np.flatnonzero(fabric.link_state == State.DOWN).tolist()
    )


def undecided(
    held: AbstractSet[LinkEnds], heard: AbstractSet[str], fabric: Fabric
) -> frozenset[LinkEnds]:
    """Links that a plan held to be down and that not both ends have told about.

    NICs have no agents: theirs is the word of the switch alone.
    """
    index, kind = fabric.structure.index, fabric.structure.nodes.kind

    def waits(end: str) -> bool:
        return kind[index[end]] != NodeKind.NIC and end not in heard

    return frozenset(
        link for link in held if fabric.find_links(*link) and (waits(link[0]) or waits(link[1]))
    )
