"""Link states that agents report, kept in memory and only from this controller's own sessions.

A link is DOWN while the agent at either end says so. The last report of an agent counts until it
reports something else, even while it has no session: silence does not mean that a link is back.

- Reports of a session that a newer one has replaced come late and are ignored.
- Within one instance of an agent, an observation counts only if its sequence is above the last one.
- The first report of another instance replaces everything that the earlier instance reported.
- A full report forgets what the same agent said about links that it does not name.
- An agent can only report links that end at its own switch. Links that the fabric lacks count from
  when it gets them.

Where switches hash, hosts report which path each source port of their NICs takes. This state is
not stored either: hosts repeat it to every controller, and a plan contains the ports that it was
made with. The same holds for what switches count of flows that nobody announced (``unannounced``).

A controller that has just begun to lead knows less than the last plan did. Links that the last plan
held to be down stay down until the agents at both ends have sent full reports in open sessions, or
until patience is over (``undecided``). A report that a link is down is believed at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from heddle_controller.model.arrays import Ints
from heddle_controller.model.fabric import Fabric, LinkKey, NodeKind, State, Structure
from heddle_controller.model.port_paths import PortPaths, joined_port_paths, no_port_paths
from heddle_controller.reconcile.ports import AgentSession, LinkReport
from heddle_controller.reconcile.unannounced import (
    FoundFlows,
    PairRates,
    Unannounced,
    UnannouncedTerms,
)
from heddle_controller.state.records import Intent
from heddle_controller.store.applier import Feed

LinkEnds: TypeAlias = tuple[str, str, str]
"""A link: its lesser node id, its greater node id, and its key as text."""


def link_ends(one: str, other: str, key: LinkKey) -> LinkEnds:
    """Return the name of a link in a form that does not depend on its direction."""
    low, high = sorted((one, other))
    return low, high, str(key)


@dataclass(slots=True)
class _Said:
    """What the agent of one switch reported last."""

    session: int
    """Id of its newest session."""
    stands: bool = True
    """Whether that session is open."""
    instance: str = ""
    links: dict[LinkEnds, int] = field(default_factory=dict)
    """Last sequence of each link. Plain numbers keep work from the garbage collector."""
    down: set[LinkEnds] = field(default_factory=set)
    """Links that the agent says are DOWN."""

    def forget(self, ends: LinkEnds) -> None:
        """Forget what was reported of a link."""
        del self.links[ends]
        self.down.discard(ends)


@dataclass(frozen=True, slots=True)
class SeenLinks:
    """Link states of one fabric at one moment, by link row."""

    down: frozenset[int] = frozenset()
    since: Mapping[int, float] = field(default_factory=dict)
    """When each state last changed, Unix seconds. Links that never changed, and those that no
    agent reports any more, are absent."""


@dataclass(frozen=True, slots=True, eq=False)
class PortReport:
    """Paths of source ports that a host found by probing, where switches hash."""

    structure: Structure
    """The structure of all rows. A report for another structure no longer counts."""
    source: Ints
    """Source NICs of the pairs that the report covers, parallel with ``destination``."""
    destination: Ints
    known: PortPaths


class LinkStates:
    """A live view of one fabric's link states, which each report updates."""

    def __init__(self, terms: UnannouncedTerms | None = None) -> None:
        self.unannounced = Unannounced(terms)
        self.version = 0
        """Grows whenever the state of a link changes."""
        self.change_time = 0.0
        """When that last happened, Unix seconds; 0 for never."""
        self._said: dict[str, _Said] = {}
        self._down: dict[LinkEnds, frozenset[str]] = {}
        """The switches that say so, by link that is DOWN."""
        self._since: dict[LinkEnds, float] = {}
        self._heard: set[str] = set()
        self._ports: dict[str, PortReport] = {}
        """The last report of each host. Most are for the same structure."""
        self._all_ports: tuple[Structure, PortPaths] | None = None

    def report_ports(self, host: str, told: PortReport) -> bool:
        """Take in a host's report on source ports and return whether it changed anything."""
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
        """Return what a host reported of its NICs' ports; empty if for another structure."""
        told = self._ports.get(host)
        return told.known if told and told.structure is structure else no_port_paths()

    def with_ports(self, fabric: Fabric) -> Fabric:
        """Return the fabric with the ports that hosts reported.

        Its ``port_paths`` are the same object as before while no host reports anything new.
        """
        if not self._ports:
            return fabric
        structure = fabric.structure
        if self._all_ports is None or self._all_ports[0] is not structure:
            parts = [self.ports_of(host, structure) for host in sorted(self._ports)]
            self._all_ports = structure, joined_port_paths(parts)
        return replace(fabric, port_paths=self._all_ports[1])

    def tells_ports(self, known: PortPaths | None) -> bool:
        """Return whether ``known`` is still what ``with_ports`` gives; None is no ports at all."""
        if known is None:
            return not self._ports
        return self._all_ports is not None and self._all_ports[1] is known

    @property
    def down(self) -> AbstractSet[LinkEnds]:
        """Links that are DOWN by the word of either end."""
        return self._down.keys()

    @property
    def heard(self) -> AbstractSet[str]:
        """Switches whose agents have sent a full report in a session that is open."""
        return self._heard

    def with_unannounced(self, intent: Intent, found: FoundFlows | None = None) -> Intent:
        """Return the intent with unannounced flows: those of ``found``, else the current ones."""
        record = (found or self.unannounced.flows).record(intent.fabric.structure)
        return replace(intent, demands=(*intent.demands, record)) if record else intent

    def seen(self, fabric: Fabric) -> SeenLinks:
        """Return the link states by row. Takes time in proportion to links that ever changed."""
        since = {row: self._since[ends] for ends in self._since for row in fabric.find_links(*ends)}
        return SeenLinks(frozenset(_rows(fabric, self._down)), since)

    def joined(self, about: AgentSession) -> None:
        """Note that a session begins. Nothing has been reported in it yet."""
        said = self._said.setdefault(about.switch, _Said(about.id))
        if about.id >= said.session:
            said.session, said.stands = about.id, True
            self._heard.discard(about.switch)

    def left(self, about: AgentSession) -> None:
        """Note that a session has ended. What was reported in it still counts."""
        said = self._said.get(about.switch)
        if said is not None and about.id >= said.session:
            said.session, said.stands = about.id, False
            self._heard.discard(about.switch)

    def report(self, about: AgentSession, report: LinkReport, now: float) -> bool:
        """Take in a report at ``now`` (Unix seconds); return whether any link changed its state."""
        switch = about.switch
        said = self._said.setdefault(switch, _Said(about.id))
        if about.id < said.session:
            return False
        if about.id > said.session:
            said.session, said.stands = about.id, True
        told = {
            link_ends(one.link.source, one.link.target, one.link.key): (one.state, one.sequence)
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
        """Update the links that a switch has changed its report of; return whether any changed."""
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
            if not any(ends in self._said[end].links for end in ends[:2] if end in self._said):
                self._since.pop(ends, None)  # nobody speaks of it any more
        if changed:
            self.version += 1
            self.change_time = now
        return changed


class Observations:
    """What the agents of all fabrics report."""

    def __init__(self, unannounced: UnannouncedTerms | None = None) -> None:
        self._unannounced = unannounced or UnannouncedTerms()
        self._fabrics: dict[str, LinkStates] = {}
        self._feed = Feed[str]()

    def of(self, fabric: str) -> LinkStates:
        """Return the link states of a fabric, empty ones if nothing is known yet."""
        known = self._fabrics.get(fabric)
        if known is None:
            known = self._fabrics[fabric] = LinkStates(self._unannounced)
        return known

    def joined(self, about: AgentSession) -> None:
        """Note that a session begins."""
        self.of(about.fabric).joined(about)

    def left(self, about: AgentSession) -> None:
        """Note that a session has ended."""
        self.of(about.fabric).left(about)

    def report(self, about: AgentSession, report: LinkReport, now: float) -> None:
        """Take in a link report of an agent; ``now`` is in Unix seconds."""
        if self.of(about.fabric).report(about, report, now) or report.full:
            self._feed.tell(about.fabric, about.fabric)

    def report_ports(self, fabric: str, host: str, told: PortReport) -> None:
        """Take in a host's report on source ports."""
        if self.of(fabric).report_ports(host, told):
            self._feed.tell(fabric, fabric)

    def report_pairs(self, about: AgentSession, told: PairRates, now: float, wall: float) -> None:
        """Take in what a switch counted of unannounced pairs; see ``Unannounced.report``."""
        if self.of(about.fabric).unannounced.report(about.switch, told, now, wall):
            self._feed.tell(about.fabric, about.fabric)

    def changes(self) -> AsyncIterator[str]:
        """Names of fabrics with changes from now on, coalesced; the iterator never ends."""
        return self._feed.follow()


def _rows(fabric: Fabric, links: Iterable[LinkEnds]) -> Iterable[int]:
    for low, high, key in links:
        yield from fabric.find_links(low, high, key)


def with_down(fabric: Fabric, down: Iterable[LinkEnds]) -> Fabric:
    """Return the fabric with these links DOWN. Links that it lacks are ignored."""
    return fabric.with_links(dict.fromkeys(_rows(fabric, down), State.DOWN))


def held_down(fabric: Fabric) -> frozenset[LinkEnds]:
    """Return the links whose own state is DOWN in a plan's fabric."""
    links, ids = fabric.structure.links, fabric.structure.nodes.ids
    return frozenset(
        link_ends(ids[int(links.a[row])], ids[int(links.b[row])], links.key[row])
        for row in np.flatnonzero(fabric.link_state == State.DOWN).tolist()
    )


def undecided(
    held: AbstractSet[LinkEnds], heard: AbstractSet[str], fabric: Fabric
) -> frozenset[LinkEnds]:
    """Return the links that a plan held to be down and whose ends have not both reported.

    NICs have no agents, so for a NIC's link the report of the switch is enough. Links that the
    fabric lacks are left out.

    Args:
        held: Links that the plan held to be down.
        heard: Switches whose agents have sent a full report.
        fabric: The current fabric.
    """
    index, kind = fabric.structure.index, fabric.structure.nodes.kind

    def waits(end: str) -> bool:
        return kind[index[end]] != NodeKind.NIC and end not in heard

    return frozenset(
        link for link in held if fabric.find_links(*link) and (waits(link[0]) or waits(link[1]))
    )
