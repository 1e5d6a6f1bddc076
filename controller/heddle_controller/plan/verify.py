"""An independent check of a plan, before anybody relies on it.

It shares no code with the solver: what a plan must be is said here a second time,
from the arrays alone, and cheaply enough to run on every plan.

A link in maintenance (drained) still carries but takes no new paths. A flow may
stay on one only where no way round it exists: where the links that take new paths
do not join its ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice

import numpy as np

from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.plan import Certificate, Plan, worst_by_tier
from heddle_controller.plan.columns import distinct
from heddle_controller.plan.diff import changed_rows
from heddle_controller.plan.loads import loads_after
from heddle_controller.plan.path_checks import Fault, backup_faults, malformed, path_faults
from heddle_controller.plan.ports import port_faults
from heddle_controller.plan.programs import entries_of

MOST_TOLD = 20
_TOLERANCE = 1e-6
"""How far a figure of the certificate may be from what is found again, relative to it."""


class PlanInvalid(Exception):  # noqa: N818  # a word of the design: a plan is valid or invalid
    """A plan that must not be used. ``problems`` says why, at most ``MOST_TOLD``."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(*self.problems)

    def __str__(self) -> str:
        more = len(self.problems) - 1
        return f"the plan is invalid: {self.problems[0]}" + (f" (and {more} more)" if more else "")


def verify_plan(plan: Plan, known: Plan | None = None) -> None:
    """Check a plan whole.

    ``known`` is a plan that passed. Where this one is found to have the same flows and QPs in the
    same rows, the rows that have other arcs are checked, and arcs that carry just what they carried
    there are not added up again. What hangs on the state of links is asked of all rows anyway.

    Raises:
        PlanInvalid: anything at all is wrong with it.
    """
    # Later checks stand on earlier ones: each group runs on what the one before let pass.
    rows = None if known is None else _new_rows(plan, known)
    for group in (
        partial(_shape, rows=rows),
        partial(_routes, rows=rows),
        partial(_figures, known=known),
    ):
        if problems := [*islice(group(plan), MOST_TOLD)]:
            raise PlanInvalid(problems)


def _shape(plan: Plan, rows: Ints | None) -> Iterator[str]:
    for name, paths in (("paths", plan.paths), ("backups", plan.backups)):
        if reason := malformed(plan, paths if rows is None else paths.take(rows)):
            yield f"{name}: {reason}"
            return
    if rows is not None:
        return  # the columns are those of the known plan
    pairs = [(getattr(plan.paths, n), getattr(plan.backups, n)) for n in _WHOSE]
    if not all(np.array_equal(path, backup) for path, backup in pairs):
        yield "backups do not stand in parallel to paths"
    if not all(0 <= row < len(plan.flows) for row in plan.unrouted):
        yield "unrouted names flows that are not there"


_WHOSE = ("flow", "first_qp", "last_qp")


def _routes(plan: Plan, rows: Ints | None) -> Iterator[str]:
    yield from _coverage(plan) if rows is None else _unexplained(plan)
    if rows is None:
        rows = np.arange(len(plan.paths), dtype=np.int64)
    yield from _told(plan, "path", path_faults(plan, plan.paths, rows))
    empty = rows[plan.paths.first[rows] == plan.paths.first[rows + 1]].tolist()
    yield from _told(plan, "path", ((row, "has no links") for row in empty))
    yield from _told(plan, "backup", path_faults(plan, plan.backups, rows))
    yield from _told(plan, "backup", backup_faults(plan, rows))


def _new_rows(plan: Plan, known: Plan) -> Ints | None:
    """Rows whose path or backup is not just that of the known plan, ascending.

    None where anything else differs: which flows there are, where rows begin, which QPs are theirs,
    or which flows have none. Of plans that differ in arcs alone, each flow has its paths in both.
    """
    if known.fabric.structure is not plan.fabric.structure:
        return None
    if not plan.flows.same_as(known.flows) or plan.unrouted.keys() != known.unrouted.keys():
        return None
    pairs = (known.paths, plan.paths), (known.backups, plan.backups)
    paths, backups = (changed_rows(was, now) for was, now in pairs)
    return None if paths is None or backups is None else distinct(np.append(paths, backups))


def _told(plan: Plan, what: str, faults: Iterator[Fault]) -> Iterator[str]:
    paths = plan.paths
    for row, reason in faults:
        qps = f"QPs {paths.first_qp[row]} to {paths.last_qp[row]}"
        yield f"flow {plan.flows.ids[paths.flow[row]]!r}, {what} of {qps}: {reason}"


def _coverage(plan: Plan) -> Iterator[str]:
    """Every flow has its QPs on paths, each once, or says why it has none."""
    paths, flows = plan.paths, plan.flows
    for row in _not_partitioned(plan):
        own = paths.flow == row
        told = [*zip(paths.first_qp[own].tolist(), paths.last_qp[own].tolist(), strict=True)]
        yield f"flow {flows.ids[row]!r}: paths carry QPs {told[:3]}, not 0 to {flows.qps[row] - 1}"
    routed = np.zeros(len(flows), dtype=np.bool_)
    routed[paths.flow] = True
    for row in plan.unrouted:
        if routed[row]:
            yield f"flow {flows.ids[row]!r}: has a path, yet counts as unrouted"
        routed[row] = True
    yield from _unexplained(plan)
    for row in np.flatnonzero(~routed).tolist():
        yield f"flow {flows.ids[row]!r}: is neither routed nor said to be unrouted"


def _unexplained(plan: Plan) -> Iterator[str]:
    for row, reason in plan.unrouted.items():
        if not reason.strip():
            yield f"flow {plan.flows.ids[row]!r}: has no path, and no reason is given"


def _not_partitioned(plan: Plan) -> list[int]:
    paths = plan.paths
    starts = np.ones(len(paths), dtype=np.bool_)
    starts[1:] = paths.flow[1:] != paths.flow[:-1]
    due = np.zeros(len(paths), dtype=np.int64)
    due[1:] = paths.last_qp[:-1] + 1
    due[starts] = 0
    bad = (paths.first_qp != due) | (paths.last_qp < paths.first_qp)
    ends = np.append(starts[1:], np.ones(min(len(paths), 1), dtype=np.bool_))
    bad |= ends & (paths.last_qp != plan.flows.qps[paths.flow] - 1)
    found: list[int] = np.unique(paths.flow[bad]).tolist()
    return found


def _figures(plan: Plan, known: Plan | None) -> Iterator[str]:
    yield from port_faults(plan)
    yield from _tables(plan)
    worst = worst_by_tier(plan.fabric, loads_after(plan, known))
    yield from _certificate(plan.certificate, worst)


def _tables(plan: Plan) -> Iterator[str]:
    nodes = plan.fabric.structure.nodes
    if (nodes.table_size == NONE).all():
        return
    entries = np.bincount(entries_of(plan).switch, minlength=len(nodes.ids))
    for row in np.flatnonzero((nodes.table_size != NONE) & (entries > nodes.table_size)).tolist():
        held = f"needs {entries[row]} entries, its table holds {nodes.table_size[row]}"
        yield f"switch {nodes.ids[row]!r}: {held}"


def _certificate(told: Certificate, found: dict[str, float]) -> Iterator[str]:
    rows = [("", told.max_utilization, told.lower_bound, max(found.values(), default=0.0))]
    for tier in told.tiers:
        if tier.tier not in found:
            yield f"certificate: the fabric has no tier {tier.tier!r}"
            continue
        name = f" of {tier.tier}"
        rows.append((name, tier.max_utilization, tier.lower_bound, found[tier.tier]))
    for name, said, bound, real in rows:
        # Told the other way round, a NaN would pass.
        if not abs(said - real) <= _TOLERANCE * max(1.0, real):
            yield f"certificate: worst utilisation{name} is {real:.6g}, said to be {said:.6g}"
        if not 0 <= bound <= said + _TOLERANCE * max(1.0, said):
            yield f"certificate: lower bound{name} {bound:.6g} is not within 0 and {said:.6g}"
    for name in sorted({tier for tier, value in found.items() if value > 0}):
        if name not in {tier.tier for tier in told.tiers}:
            yield f"certificate: says nothing of the tier {name!r}, which carries load"
    if told.lower_bound > 0 and told.proof in ("", "none"):
        yield "certificate: gives a lower bound and no proof of it"
