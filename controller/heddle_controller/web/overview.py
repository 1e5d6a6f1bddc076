"""The overview of a fabric, in a few figures and in words: the page's first view.

``PlanView`` has what the page shows of a plan by link and by flow. It is made once per plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import orjson

from heddle.text import counted
from heddle.v1 import plan_pb2
from heddle_controller.model.arrays import NONE, Bools, Floats, Ints
from heddle_controller.model.fabric import Fabric, NodeKind, State, Structure
from heddle_controller.model.plan import Plan
from heddle_controller.plan.limits import Fares, fares_of
from heddle_controller.reconcile.observations import LinkEnds, SeenLinks
from heddle_controller.serve.agents.link_book import Condition
from heddle_controller.serve.rates import Rates
from heddle_controller.state.records import Committed, FabricRecord, JobRecord, JobState

PER_MILLE = 1000


@dataclass(frozen=True, slots=True, eq=False)
class SwitchLinks:
    """The switches and the links between them, numbered as on the page."""

    switches: Ints
    """Node rows, ascending."""
    links: Ints
    """Link rows, ascending."""
    place: Ints
    """For each link row, its place in ``links``; ``NONE`` for links of NICs."""

    @classmethod
    def of(cls, structure: Structure) -> SwitchLinks:
        """Return the switches and links of a structure."""
        is_switch = structure.nodes.kind != NodeKind.NIC
        links = np.flatnonzero(is_switch[structure.links.a] & is_switch[structure.links.b])
        place = np.full(len(structure.links.key), NONE, dtype=np.int64)
        place[links] = np.arange(len(links))
        return cls(np.flatnonzero(is_switch), links, place)

    def json(self, structure: Structure, revision: int) -> bytes:
        """Return the switches and links as JSON, by column."""
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
    """How full links are by the measured rates of flows."""

    utilization: Floats
    """Measured rate over capacity of each arc, from flows with a rate only."""
    flows: int
    """Number of flows with a rate."""
    of: int
    """Number of all flows."""
    oldest: float
    """When the oldest of these rates was measured, Unix seconds; infinity without any."""


@dataclass(frozen=True, slots=True, eq=False)
class PlanView:
    """What the page shows of a committed plan."""

    epoch: int
    generation: int
    plan: Plan
    fares: Fares
    """What flows and jobs get."""
    worst: tuple[int, ...]
    """The fullest arc of each tier, from the hosts up; ``NONE`` for a tier without load."""
    slowest: int
    """The row of the slowest flow that has a path; ``NONE`` if none has."""

    @classmethod
    def of(cls, committed: Committed) -> PlanView:
        """Return the view of a plan; use a thread, for a large full plan takes 0.3 s."""
        plan = committed.plan
        fares = fares_of(plan)
        worst = _worst_arcs(plan.fabric.structure, fares.utilization)
        number = committed.program.epoch, committed.generation
        view = cls(*number, plan, fares, worst, NONE)
        slowest = view.slowest_of(np.flatnonzero(fares.fullest != NONE), 1)
        return replace(view, slowest=int(slowest[0])) if len(slowest) else view

    def is_of(self, committed: Committed) -> bool:
        """Return whether it was made of this plan."""
        return (self.epoch, self.generation) == (committed.program.epoch, committed.generation)

    @property
    def tag(self) -> str:
        """A text that identifies the plan within its fabric."""
        return f"{self.epoch}.{self.generation}"

    def json(self, links: SwitchLinks) -> bytes:
        """Return how full each link between switches is, both ways, in thousandths, as JSON."""
        return self._json(links, self.fares.utilization)

    def measured_json(self, links: SwitchLinks, rates: Sequence[Rates]) -> bytes:
        """Return the same by measured rates, with the number of flows that have a rate."""
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
        """Return how full links are if each flow's highest rate follows its planned paths."""
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

    def slowest_of(self, rows: Ints, count: int) -> Ints:
        """Return the ``count`` slowest of these flow rows; equal ones by their fullest link."""
        fullest = self.fares.fullest[rows]
        used = np.where(fullest == NONE, np.inf, self.fares.utilization[fullest])
        return rows[np.lexsort((-used, self.fares.share[rows]))[:count]]


def _worst_arcs(structure: Structure, used: Floats) -> tuple[int, ...]:
    tiers = [np.flatnonzero(structure.tier_of_arc == tier) for tier in range(len(structure.tiers))]
    worst = [int(arcs[np.argmax(used[arcs])]) if len(arcs) else NONE for arcs in tiers]
    return tuple(arc if arc != NONE and used[arc] > 0 else NONE for arc in worst)


def same_structure(one: Fabric, other: Fabric) -> bool:
    """Return whether rows of nodes and links mean the same in two fabrics."""
    first, second = one.structure, other.structure
    return first is second or (
        first.nodes.ids == second.nodes.ids
        and np.array_equal(first.links.a, second.links.a)
        and np.array_equal(first.links.b, second.links.b)
        and first.links.key == second.links.key
    )


_Json: TypeAlias = dict[str, Any]
_NAMED = 20
"""Most switches, jobs and links that are named."""
MARKED = 10_000
"""Most links that are marked as down, and as drained."""
_CLOSE = 0.1
"""Share by which a tier's worst link may exceed its bound without a remark in the verdict."""


@dataclass(frozen=True, slots=True, eq=False)
class StandingPlan:
    """All that an overview is made of; ``plan`` and ``view`` are None without a plan."""

    record: FabricRecord
    seen: SeenLinks
    unwell: dict[LinkEnds, Condition]
    jobs: tuple[JobRecord, ...]
    missing: tuple[str, ...]
    """Ids of switches whose agent has no session with this controller."""
    aside: frozenset[str]
    """Switches that are set aside."""
    plan: plan_pb2.Plan | None
    view: PlanView | None
    leader: str
    leads: bool
    stale_seconds: float


def overview(now: StandingPlan, links: SwitchLinks) -> _Json:
    """Return an overview as the page expects it, ready for JSON."""
    fabric = now.record.fabric
    switches, expected = len(links.switches), len(fabric.structure.programmed)
    missing = [one for one in now.missing if one not in now.aside]
    told = {
        "fabric": now.record.name,
        "title": now.record.title,
        "revision": now.record.revision,
        "nics": fabric.node_count - switches,
        "switches": switches,
        "links": _links(now, links),
        "agents": {
            "expected": expected,
            "connected": expected - len(now.missing),
            "missing_count": len(missing),
            "missing": missing[:_NAMED],
            "aside_count": len(now.aside),
        },
        "jobs": _jobs(now.jobs),
        "plan": _plan(now.plan),
        "tiers": _tiers(now),
        "slowest": _slowest(now.view),
        "leader": {"name": now.leader, "here": now.leads},
        "stale_seconds": round(now.stale_seconds, 1),
        "withdrawn": now.record.overlay.withdrawn,
    }
    return {**told, "verdict": verdict(told)}


def verdict(told: _Json) -> _Json:
    """Return whether all is well, as a level and as sentences, the worst first."""
    bad, warn = list(_wrong(told)), list(_suspicious(told))
    if told["plan"] is None:
        good = "There is no plan yet: no job has been submitted."
    else:
        good = f"Every flow has a path, and every switch holds plan {told['plan']['generation']}."
    level = "bad" if bad else "warn" if warn else "good"
    return {"level": level, "sentences": [*bad, *warn] or [good]}


def _wrong(told: _Json) -> Iterator[str]:
    """Yield sentences about problems that already harm users."""
    plan, degraded = told["plan"], told["jobs"]["count"]["DEGRADED"]
    if told["stale_seconds"] > 0:
        yield "The store cannot be reached: what is shown is of the past, and no change is taken."
    if plan and plan["unrouted"]:
        what = counted(plan["unrouted"], "flow has", "flows have")
        yield f"{what} no path: the underlay carries what it can."
    if degraded:
        yield f"{counted(degraded, 'job is', 'jobs are')} degraded."


def _suspicious(told: _Json) -> Iterator[str]:
    """Yield sentences about what may be harmless but should be known."""
    plan, agents, links = told["plan"], told["agents"], told["links"]
    if told["withdrawn"]:
        yield "An operator has put the whole fabric on the underlay."
    if not told["leader"]["name"]:
        yield "No controller leads."
    if agents["missing_count"]:
        yield f"{counted(agents['missing_count'], 'agent has', 'agents have')} no session here."
    if agents["aside_count"]:
        yield f"{counted(agents['aside_count'], 'switch is', 'switches are')} set aside."
    if links["down_count"]:
        yield f"{counted(links['down_count'], 'link is', 'links are')} down."
    if links["unwell_count"]:
        yield f"{counted(links['unwell_count'], 'link is', 'links are')} not well."
    if plan and plan["programmed"] < plan["switches"]:
        lacking = counted(plan["switches"] - plan["programmed"], "switch does", "switches do")
        yield f"{lacking} not hold plan {plan['generation']} yet."
    for tier in told["tiers"]:
        if tier["worst"] > (1 + _CLOSE) * tier["bound"] > 0:
            yield f"The worst link of tier {tier['tier']} is more than a tenth above its bound."


def _links(now: StandingPlan, links: SwitchLinks) -> _Json:
    fabric = now.record.fabric
    down = _down(fabric, now.seen)
    drained = ~down & (fabric.effective == State.DRAINED)
    rows = np.flatnonzero(down)
    return {
        "count": fabric.link_count,
        "down_count": len(rows),
        "drained_count": int(np.count_nonzero(drained)),
        "unwell_count": len(now.unwell),
        "down": [link_view(fabric.structure, row) for row in rows[:_NAMED].tolist()],
        "unwell": [
            {"source": ends[0], "target": ends[1], "key": ends[2], "reason": condition.reason}
            for ends, condition in list(now.unwell.items())[:_NAMED]
        ],
        "marks": {"down": _marks(rows, links), "drained": _marks(np.flatnonzero(drained), links)},
    }


def _down(fabric: Fabric, seen: SeenLinks) -> Bools:
    """Return for each link whether it is down, as set by operators or as seen by agents."""
    down: Bools = fabric.effective == State.DOWN
    down[list(seen.down)] = True
    return down


def _marks(rows: Ints, links: SwitchLinks) -> list[int]:
    places = links.place[rows]
    return [place for place in places.tolist() if place != NONE][:MARKED]


def link_view(structure: Structure, link: int, *, arc: int = NONE) -> _Json:
    """Return a link by the ids of its ends; with ``arc``, in the direction of travel."""
    a, b = int(structure.links.a[link]), int(structure.links.b[link])
    a, b = (b, a) if arc != NONE and arc % 2 else (a, b)
    ids = structure.nodes.ids
    return {"source": ids[a], "target": ids[b], "key": str(structure.links.key[link])}


def _jobs(jobs: tuple[JobRecord, ...]) -> _Json:
    count = Counter(JobState(record.facts.state).name for record in jobs)
    degraded = [record for record in jobs if record.facts.state == JobState.DEGRADED]
    return {
        "count": {state.name: count[state.name] for state in JobState},
        "degraded": [
            {"job": record.job.name, "reason": record.facts.reason} for record in degraded[:_NAMED]
        ],
    }


def _plan(plan: plan_pb2.Plan | None) -> _Json | None:
    if plan is None:
        return None
    return {
        "generation": plan.generation,
        "epoch": plan.epoch,
        "routed": plan.routed_count,
        "unrouted": plan.unrouted_count,
        "changed": plan.changed_count,
        "solve_seconds": plan.solve_seconds,
        "commit_time": plan.commit_time.ToNanoseconds() / 1e9,
        "programmed": plan.programmed_switch_count,
        "switches": plan.switch_count,
        "entries": plan.entry_count,
        "proof": plan.certificate.proof,
    }


def _tiers(now: StandingPlan) -> list[_Json]:
    """Return the worst link of each tier with its lower bound; empty without a plan."""
    if now.plan is None or now.view is None:
        return []
    structure = now.view.plan.fabric.structure
    worst = dict(zip(structure.tiers, now.view.worst, strict=True))
    return [
        {
            "tier": tier.tier,
            "worst": tier.max_utilization,
            "bound": tier.lower_bound,
            "link": link_view(structure, worst[tier.tier] >> 1, arc=worst[tier.tier])
            if worst.get(tier.tier, NONE) != NONE
            else None,
        }
        for tier in now.plan.certificate.tiers
    ]


def _slowest(view: PlanView | None) -> _Json | None:
    """Return the slowest flow that has a path; None if none has."""
    if view is None or view.slowest == NONE:
        return None
    return {**flow_json(view, view.slowest), "generation": view.generation}


def flow_json(view: PlanView, row: int) -> _Json:
    """Return a flow with the link that limits it, ready for JSON."""
    plan, arc = view.plan, view.fares.limit_of(row)
    flows, ids = plan.flows, plan.fabric.structure.nodes.ids
    told: _Json = {
        "flow": flows.ids[row],
        "job": flows.job_names[int(flows.job[row])],
        "source": ids[int(flows.source[row])],
        "destination": ids[int(flows.destination[row])],
        "gbps": float(flows.gbps[row]),
        "unrouted": plan.unrouted.get(row, ""),
        "link": None,
        "utilization": None,
        "share": float(view.fares.share[row]),
    }
    if arc != NONE:
        told["link"] = link_view(plan.fabric.structure, arc >> 1, arc=arc)
        told["utilization"] = float(view.fares.utilization[arc])
    return told
