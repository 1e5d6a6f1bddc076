"""Prints plans, routes and certificates as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from heddle.names import path_name
from heddle.v1 import common_pb2, plan_pb2
from heddle_controller.cli.options import last_part, ref_text
from heddle_controller.cli.output import echo, echo_pairs, echo_table
from heddle_controller.serve.codec import times

if TYPE_CHECKING:
    from heddle_controller.model.plan import AfterLoss, Certificate, Turn

AFTER_LOSS = ["lost", "worst", "slowest flow", "worst link", "lower bound", "then"]
"""Columns of the table of what single losses do right after local repair."""
TURNS = ["job in turns", "begins at, s", "and every, s", "saves of an iteration"]
"""Columns of the table of when jobs should begin their iterations."""


def echo_plan(plan: plan_pb2.Plan) -> None:
    """Print a plan and its certificate."""
    echo_pairs(
        {
            "fabric": last_part(plan.name.removesuffix("/plan")),
            "generation": plan.generation,
            "epoch": plan.epoch,
            "flows": f"{plan.routed_count} routed, {plan.unrouted_count} not",
            "moved": f"{plan.changed_count} flows",
            "worst link": certificate_text(plan.certificate),
            "entries": f"{plan.entry_count} in {plan.switch_count} switches",
            "programmed": f"{plan.programmed_switch_count} of {plan.switch_count} switches",
            "solved in": f"{plan.solve_seconds:.3f} s",
            "committed": times.time_text(plan.commit_time),
            "all acknowledged": times.time_text(plan.programmed_time),
            "kept to": _kept_to(plan),
        }
    )
    echo_tiers(plan.certificate)
    echo_after_loss(plan.certificate)
    echo_turns(plan.certificate.turns.jobs)
    for note in plan.notes:
        echo(f"note: {note}")
    echo_unprotected(plan.certificate.unprotected_count, plan.certificate.unprotected_flows)


def echo_unprotected(count: int, names: Sequence[str]) -> None:
    """Print how many flows have no usable backup, and the first names, if there are any."""
    if count:
        more = " …" if count > len(names) else ""
        echo(
            f"note: one loss may stop {count} flows, as no switch has a backup for them:"
            f" {', '.join(names)}{more}"
        )


def _kept_to(plan: plan_pb2.Plan) -> str:
    """Return which earlier plan an operator returned to; empty if none."""
    if not plan.HasField("rollback"):
        return ""
    end = times.time_text(plan.rollback.end_time)
    return f"plan {plan.rollback.generation} until {end}: heddle plan release ends that"


def certificate_text(certificate: common_pb2.Certificate | Certificate) -> str:
    """Return a text such as ``1.000; no plan below 1.000 (cut), gap 0.0%``."""
    worst, bound = certificate.max_utilization, certificate.lower_bound
    if certificate.proof == "none":
        return "no load"
    if worst > 0 >= bound:
        return f"{worst:.3f}; nothing is proven: all of it is on links that take no new paths"
    return (
        f"{worst:.3f}; no plan below {bound:.3f} ({certificate.proof}), gap {certificate.gap:.1%}"
    )


def echo_tiers(certificate: common_pb2.Certificate) -> None:
    """Print the worst link and the bound of each tier."""
    if certificate.tiers:
        rows = [
            (t.tier, f"{t.max_utilization:.3f}", f"{t.lower_bound:.3f}") for t in certificate.tiers
        ]
        echo_table(["tier", "worst link", "lower bound"], rows)


def echo_after_loss(certificate: common_pb2.Certificate) -> None:
    """Print what the worst loss of one link, or one switch, does until there is a new plan."""
    if certificate.after_loss:
        echo_table(AFTER_LOSS, [after_loss_row(one) for one in certificate.after_loss])


def after_loss_row(one: common_pb2.AfterLoss | AfterLoss) -> tuple[str, ...]:
    """Return the table row of one kind of loss."""
    worst, least = f"{one.worst_utilization:.3f}", f"{one.lower_bound:.3f}"
    flows = "1 flow" if one.stranded == 1 else f"{one.stranded} flows"
    stranded = f"{flows} without a way" if one.stranded else ""
    return one.kind, one.of, f"{one.slowest_flow:.3f}", worst, least, stranded


def echo_turns(turns: Iterable[common_pb2.Turn | Turn]) -> None:
    """Print when jobs should begin their iterations, if any job gains from it."""
    rows = [
        (one.job, f"{one.shift_seconds:.4f}", f"{one.pace_seconds:.4f}", f"{one.saved:.1%}")
        for one in turns
    ]
    if rows:
        echo_table(TURNS, rows)


def turn_text(turn: common_pb2.Turn) -> str:
    """Return a text such as ``every 0.2601 s from 0.1300 s on: saves 28.1% of an iteration``."""
    return (
        f"every {turn.pace_seconds:.4f} s from {turn.shift_seconds:.4f} s on: saves "
        f"{turn.saved:.1%} of an iteration"
    )


def echo_routes(routes: Iterable[plan_pb2.Route]) -> None:
    """Print routes, one line per path."""
    rows = [row for route in routes for row in _rows(route)]
    echo_table(["flow", "gbps", "qps", "path"], rows)


def _rows(route: plan_pb2.Route) -> list[tuple[str, str, str, str]]:
    if not route.paths:
        return [(route.flow, f"{route.gbps:g}", "", f"no path: {route.unrouted_reason}")]
    return [
        (
            route.flow,
            f"{route.gbps * path.share:g}",
            f"{path.first_qp}-{path.last_qp}",
            path_text(path),
        )
        for path in route.paths
    ]


def path_text(path: common_pb2.Path) -> str:
    """Return the nodes of a path and the keys of its links, or that it is the underlay."""
    return path_name(path.nodes, path.keys) or "the underlay"


SHARERS = 3
"""Number of a link's jobs that are listed by name."""


def echo_link_loads(links: Iterable[plan_pb2.LinkLoad]) -> None:
    """Print loads of links, one line per link."""
    rows = [
        (
            ref_text(one.link),
            f"{one.load_gbps:g}/{one.capacity_gbps:g}",
            f"{one.utilization:.3f}",
            one.flow_count,
            _sharers(one.jobs),
        )
        for one in links
    ]
    echo_table(["link", "gbps", "utilization", "flows", "jobs"], rows)


def _sharers(jobs: Sequence[plan_pb2.Sharer]) -> str:
    told = [f"{one.job or '(no job)'} {one.gbps:g}" for one in jobs[:SHARERS]]
    more = [f"and {len(jobs) - SHARERS} more"] if len(jobs) > SHARERS else []
    return ", ".join([*told, *more])


def echo_explanation(answer: plan_pb2.ExplainFlowResponse) -> None:
    """Print why a flow takes its path."""
    route = answer.route
    for number, (path, backup) in enumerate(zip(route.paths, route.backups, strict=True)):
        echo_pairs(
            {
                f"path {number}": path_text(path),
                "qps": f"{path.first_qp}-{path.last_qp}, "
                f"{route.gbps * path.share:g} of {route.gbps:g} Gbit/s",
                "backup": path_text(backup),
            }
        )
    for reason in answer.reasons:
        echo_pairs({"-": reason})
    rows = [
        (
            hop.path,
            ref_text(hop.link),
            f"{hop.load_gbps:g}/{hop.capacity_gbps:g}",
            f"{hop.load_gbps / hop.capacity_gbps:.3f}",
            hop.other_flow_count,
        )
        for hop in answer.hops
    ]
    if rows:
        echo_table(["path", "link", "gbps", "utilization", "other flows"], rows)
