"""What a plan comes to, link by link and flow by flow; made once a plan, from its columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import orjson

from heddle_controller.model.arrays import NONE, Floats, Ints
from heddle_controller.model.fabric import Fabric, NodeKind, Structure
from heddle_controller.model.plan import Plan, utilization
from heddle_controller.plan.fares import fullest_arcs
from heddle_controller.serve.rates import Rates
from heddle_controller.state.records import Committed

PER_MILLE = 1000


@dataclass(frozen=True, slots=True, eq=False)
class SwitchLinks:
    """The links between switches, numbered as the page numbers them."""

    switches: Ints
    """Node rows, ascending."""
    links: Ints
    """Link rows, ascending."""
    place: Ints
    """Of each link row, its place in ``links``; ``NONE`` for links of NICs."""

    @classmethod
    def of(cls, structure: Structure) -> SwitchLinks:
        """Those of a fabric."""
        is_switch = structure.nodes.kind != NodeKind.NIC
        links = np.flatnonzero(is_switch[structure.links.a] & is_switch[structure.links.b])
        place = np.full(len(structure.links.key), NONE, dtype=np.int64)
        place[links] = np.arange(len(links))
        return cls(np.flatnonzero(is_switch), links, place)

    def json(self, structure: Structure, revision: int) -> bytes:
        """The switches and these links, by column."""
        nodes, links = structure.nodes, structure.links
        row = np.full(len(nodes.ids), NONE, dtype=np.int64)
        row[self.switches] = np.arange(len(self.switches))
        kinds = [NodeKind(kind).name.lower() for kind in nodes.kind[self.switches].tolist()]
        return orjson.dumps(
            {
                "revision": revision,
                "zones": structure.zone_names,
                "tiers": structure.tiers,
                "switch": {
                    "id": [nodes.ids[node] for node in self.switches.tolist()],
                    "kind": kinds,
                    "zone": nodes.zone[self.switches],
                },
                "link": {
                    "a": row[links.a[self.links]],
                    "b": row[links.b[self.links]],
                    "key": [str(links.key[link]) for link in self.links.tolist()],
                    "gbps": links.gbps[self.links],
                },
            },
            option=orjson.OPT_SERIALIZE_NUMPY,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """What flows really send, link by link."""

    utilization: Floats
    """Rate over capacity of each arc, by flows with a rate alone."""
    flows: int
    """How many these are."""
    of: int
    """How many flows there are."""
    oldest: float
    """When the oldest of these rates was measured, Unix seconds; infinity without any."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanView:
    """A committed plan, as far as people look at it."""

    epoch: int
    generation: int
    plan: Plan
    utilization: Floats
    """Load over capacity of each arc."""
    fullest: Ints
    """The fullest arc on the paths of each flow, by its row; ``NONE`` for one without a path."""
    worst: tuple[int, ...]
    """The fullest arc of each tier, from the hosts up; ``NONE`` for a tier without load."""
    slowest: int
    """The row of the flow with the fullest arc of all; ``NONE`` where no flow has a path."""

    @classmethod
    def of(cls, committed: Committed) -> PlanView:
        """Takes some milliseconds for a large plan."""
        plan = committed.plan
        used = utilization(plan.fabric, plan.loads)
        fullest = fullest_arcs(plan, used)
        routed = np.flatnonzero(fullest != NONE)
        slowest = int(routed[np.argmax(used[fullest[routed]])]) if len(routed) else NONE
        worst = _worst_arcs(plan.fabric.structure, used)
        number = committed.program.epoch, committed.generation
        return cls(*number, plan, used, fullest, worst, slowest)

    def is_of(self, committed: Committed) -> bool:
        """Whether it was made of this plan."""
        return (self.epoch, self.generation) == (committed.program.epoch, committed.generation)

    @property
    def tag(self) -> str:
        """Tells this plan from others."""
        return f"{self.epoch}.{self.generation}"

    def json(self, links: SwitchLinks) -> bytes:
        """How full each link between switches is, both ways, in thousandths."""
        return self._json(links, self.utilization)

    def measured_json(self, links: SwitchLinks, rates: Sequence[Rates]) -> bytes:
        """The same of what was measured, and of how many flows."""
        told = self.measured(rates)
        time = told.oldest if told.flows else None
        return self._json(links, told.utilization, measured=told.flows, flows=told.of, time=time)

    def _json(self, links: SwitchLinks, used: Floats, **more: object) -> bytes:
        per_mille = np.rint(used * PER_MILLE).astype(np.int64)
        return orjson.dumps(
            {
                "epoch": self.epoch,
                "generation": self.generation,
                "forth": per_mille[2 * links.links],
                "back": per_mille[2 * links.links + 1],
                **more,
            },
            option=orjson.OPT_SERIALIZE_NUMPY,
        )

    def measured(self, rates: Sequence[Rates]) -> Measured:
        """What flows were measured to send, laid on their paths."""
        flows, paths = self.plan.flows, self.plan.paths
        row = {flow: row for row, flow in enumerate(flows.ids)}
        sent, oldest = np.full(len(flows), np.nan), np.inf
        for one in rates:
            found = np.array([row.get(flow, NONE) for flow in one.flows], dtype=np.int64)
            known = np.flatnonzero(found != NONE)
            if len(known):
                np.fmax.at(sent, found[known], one.gbps[known])
                oldest = min(oldest, one.time)
        of_wanted = np.nan_to_num(sent) / np.where(flows.gbps > 0, flows.gbps, 1.0)
        gbps = (paths.gbps(flows) * of_wanted[paths.flow])[paths.owner()]
        capacity = self.plan.fabric.structure.capacity
        load = np.bincount(paths.arcs, weights=gbps, minlength=len(capacity))
        used = np.divide(load, capacity, out=np.zeros(len(capacity)), where=capacity > 0)
        return Measured(used, int(np.count_nonzero(~np.isnan(sent))), len(flows), float(oldest))

    def share(self) -> Floats:
        """What each flow gets of its demand if its fullest link is shared by demand; at most 1."""
        used = np.where(self.fullest == NONE, 0.0, self.utilization[self.fullest])
        return np.where(self.fullest == NONE, 0.0, 1.0 / np.maximum(used, 1.0))

    def slowest_of(self, rows: Ints, count: int) -> Ints:
        """The rows of those of some flows on the fullest links, the fullest first."""
        used = np.where(self.fullest[rows] == NONE, np.inf, self.utilization[self.fullest[rows]])
        return rows[np.argsort(-used, kind="stable")[:count]]


def _worst_arcs(structure: Structure, used: Floats) -> tuple[int, ...]:
    tiers = [np.flatnonzero(structure.tier_of_arc == tier) for tier in range(len(structure.tiers))]
    worst = [int(arcs[np.argmax(used[arcs])]) if len(arcs) else NONE for arcs in tiers]
    return tuple(arc if arc != NONE and used[arc] > 0 else NONE for arc in worst)


def same_structure(one: Fabric, other: Fabric) -> bool:
    """Whether the rows of two fabrics mean the same."""
    first, second = one.structure, other.structure
    return first is second or (
        first.nodes.ids == second.nodes.ids
        and np.array_equal(first.links.a, second.links.a)
        and np.array_equal(first.links.b, second.links.b)
        and first.links.key == second.links.key
    )
