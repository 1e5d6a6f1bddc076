"""Who is there, what is under way to whom, and whom to wait for no longer.

A switch that is away still forwards, so others wait for it for a while. One that has no link
left, by what its neighbours say, forwards nothing: nobody waits for it at all.

Keyed by switch id, because ids outlive the rows of one fabric.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np

from heddle_controller.model.arrays import Ints
from heddle_controller.model.fabric import Fabric, Structure
from heddle_controller.reconcile.rollout.pushes import PendingPush
from heddle_controller.reconcile.rollout.steps import Switches
from heddle_controller.reconcile.southbound import AgentSession


class Presence:
    """Sessions and pushes of one fabric."""

    def __init__(self, patience: float, now: float) -> None:
        self._patience = patience
        self._start = now
        self._away: dict[str, float] = {}
        self._structure: Structure | None = None
        self._switches: frozenset[str] = frozenset()
        self._met: tuple[Structure, Ints] | None = None
        """Rows of those that have a session, while these are as they were: there may be thousands
        of them, and there are many looks."""
        self._missing: frozenset[str] | None = None
        """Those that have none, likewise."""
        self.sessions: dict[str, AgentSession] = {}
        self.sent: dict[str, PendingPush] = {}

    def update(
        self, present: Mapping[str, AgentSession], structure: Structure, now: float
    ) -> list[AgentSession]:
        """Take in who is connected now; the sessions that are new."""
        self._met = self._missing = None
        for switch in self.sessions.keys() - present.keys():
            del self.sessions[switch]
            self._away[switch] = now
        new = []
        for switch, session in present.items():
            known = self.sessions.get(switch)
            if switch in structure.index and (known is None or known.id != session.id):
                self.sessions[switch] = session
                new.append(session)
        return new

    def answered(self) -> list[PendingPush]:
        """Pushes that are done; each is returned once."""
        done = [switch for switch, sent in self.sent.items() if sent.task.done()]
        return [self.sent.pop(switch) for switch in done]

    def orphaned(self) -> list[PendingPush]:
        """Pushes to sessions that another has replaced; nobody waits for them any more."""
        lost = [
            switch
            for switch, sent in self.sent.items()
            if switch in self.sessions and self.sessions[switch].id != sent.session.id
        ]
        orphans = [self.sent.pop(switch) for switch in lost]
        for sent in orphans:
            sent.task.cancel()
        return orphans

    def switches(self, fabric: Fabric, now: float) -> Switches:
        """What can be expected of each switch; ``fabric`` is the target's."""
        structure = fabric.structure
        ready = np.zeros(len(structure.nodes.ids), dtype=np.bool_)
        stuck = np.zeros_like(ready)
        ready[self._rows(structure)] = True
        ready[[structure.index[s] for s in self.sent if s in structure.index]] = False
        given_up = (s for s, until in self._patience_ends(structure) if until <= now)
        stuck[[structure.index[s] for s in given_up]] = True
        stuck |= ~(ready | fabric.connected)
        asked = np.zeros_like(ready)
        questions = (s for s, sent in self.sent.items() if sent.step is None)
        asked[[structure.index[s] for s in questions if s in structure.index]] = True
        return Switches(ready, stuck, asked & ~stuck)

    def _rows(self, structure: Structure) -> Ints:
        if self._met is None or self._met[0] is not structure:
            rows = [structure.index[s] for s in self.sessions if s in structure.index]
            self._met = structure, np.array(rows, dtype=np.int64)
        return self._met[1]

    def why_stuck(
        self, fabric: Fabric, now: float, aside: Mapping[str, str] = MappingProxyType({})
    ) -> dict[int, str]:
        """Reasons in words, by node row; ``aside`` says so of switches that are set aside."""
        structure = fabric.structure
        cut_off = np.flatnonzero(~fabric.connected).tolist()
        words = {row: f"switch {structure.nodes.ids[row]} has no link left" for row in cut_off}
        return words | {
            structure.index[switch]: (
                f"switch {switch} has not answered for {self._patience:g} s"
                if switch in self.sessions
                else f"switch {switch} is {aside.get(switch, 'not connected')}"
            )
            for switch, until in self._patience_ends(structure)
            if until <= now
        }

    def next_end(self, structure: Structure, now: float) -> float | None:
        """When patience with another switch ends."""
        return min((end for _, end in self._patience_ends(structure) if end > now), default=None)

    def busy(self, now: float) -> bool:
        """Whether an answer is due soon."""
        return any(
            not sent.task.done() and sent.time + self._patience > now for sent in self.sent.values()
        )

    def _patience_ends(self, structure: Structure) -> Iterator[tuple[str, float]]:
        if structure is not self._structure:
            self._structure, self._switches = structure, _switches(structure)
            self._missing = None
        if self._missing is None:
            self._missing = self._switches - self.sessions.keys()
        for switch in self._missing:
            yield switch, self._away.get(switch, self._start) + self._patience
        for switch, sent in self.sent.items():
            if switch in self.sessions and switch in structure.index:
                yield switch, sent.time + self._patience


def _switches(structure: Structure) -> frozenset[str]:
    return frozenset(structure.nodes.ids[row] for row in structure.programmed.tolist())
