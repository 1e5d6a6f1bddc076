"""Conversion of placements: from requests to the model, and from recommendations to messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from heddle.text import counted
from heddle.v1 import placement_pb2 as pb
from heddle_controller.model.arrays import NONE
from heddle_controller.model.errors import MAX_PROBLEMS, InputError, Problem, refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.job import SUPPOSED, Gpus
from heddle_controller.place.ask import PlacementAsk, Score
from heddle_controller.place.order import places
from heddle_controller.planner.advice import Placement, Recommendation
from heddle_controller.serve.codec import job as job_codec
from heddle_controller.serve.codec import names, times
from heddle_controller.state.errors import FailedPrecondition
from heddle_controller.state.records import Intent, Reservation
from heddle_controller.traffic.groups import gpu_problems
from heddle_controller.traffic.jobs import unknown_host

_DEFAULT, _CEILING = 5, 20
"""Placements in an answer by default, and at most."""


def ask_from_pb(
    request: pb.RecommendPlacementRequest, intent: Intent, reserved: Sequence[Reservation]
) -> PlacementAsk:
    """Return what a request asks for, with the hosts that are free for it.

    Args:
        request: The request.
        intent: The intent, whose jobs use hosts.
        reserved: Current reservations, which hold hosts.

    Raises:
        InputError: fields are faulty; each is named.
        FailedPrecondition: the reservation is over, or too few hosts are free; says how many
            candidates are used by jobs, reserved, excluded or too small.
    """
    known = intent.fabric.structure.nics_of_host
    limits = request.constraints
    name = names.check_id(request.replaces, "replaces") if request.replaces else SUPPOSED
    if request.reservation and request.reservation not in {one.name for one in reserved}:
        reason = "is over, or never was: reserve hosts again, or ask without it"
        problem = Problem(f"reservation {request.reservation[:80]!r}", reason)
        raise FailedPrecondition("request", problem)
    _check_hosts(request.spec.hosts, intent.fabric, "spec.hosts")
    _check_hosts(limits.exclude, intent.fabric, "constraints.exclude")
    if not 1 <= request.host_count <= job_codec.MAX_JOB_HOSTS:
        reason = f"it is {request.host_count}: give 1 to {job_codec.MAX_JOB_HOSTS}"
        raise refuse("request", "host_count", reason)
    if request.count > _CEILING:
        raise refuse("request", "count", f"it is {request.count}: give {_CEILING} at most")
    candidates = sorted(request.spec.hosts or known)
    wanted = _wanted(request, candidates)
    taken, parts = dict[str, str](), dict[str, Gpus]()
    holders, excluded = _holders(request, intent, reserved), set(limits.exclude)
    for host, gpus in wanted.items():
        if host in excluded:
            taken[host] = "excluded"
        elif found := _left(gpus, request.spec.gpus_per_host, holders.get(host, ())):
            taken[host] = found
        elif gpus:
            had = {gpu for theirs, _ in holders.get(host, ()) for gpu in theirs}
            parts[host] = _run([g for g in gpus if g not in had], request.spec.gpus_per_host)
    free = tuple(host for host in candidates if host not in taken)
    if len(free) < request.host_count:
        raise FailedPrecondition("request", _too_few(request.host_count, candidates, taken, known))
    spec = pb.JobSpec()
    spec.CopyFrom(request.spec)
    spec.ClearField("hosts")
    spec.ClearField("gpus")
    spec.ClearField("suspended")
    spec.hosts.extend(free[: request.host_count])
    ask = PlacementAsk(
        job=job_codec.job_from_pb(name, spec),
        hosts=free,
        most=request.count or _DEFAULT,
        same_zone=limits.same_zone,
        hosts_per_leaf=limits.max_hosts_per_leaf,
        isolated=limits.isolated,
        parts=parts,
    )
    return replace(ask, job=ask.on(ask.job.hosts))


def _wanted(request: pb.RecommendPlacementRequest, candidates: Sequence[str]) -> dict[str, Gpus]:
    """Return the GPUs that the job may use on each candidate host; empty means the whole host."""
    spec = request.spec
    if not spec.gpus:
        return dict.fromkeys(candidates, ())
    if len(spec.gpus) not in (1, len(spec.hosts)):
        reason = f"there are {len(spec.gpus)} for {len(spec.hosts)} hosts"
        raise refuse("request", "spec.gpus", f"{reason}: give one a host, or one for all")
    if not spec.gpus_per_host:
        reason = "it is 0: say how many GPUs the job takes of each host"
        raise refuse("request", "spec.gpus_per_host", reason)
    named = list(spec.hosts) or list(candidates)
    gpus = job_codec.gpus_from_pb(spec.gpus, len(named))
    if problems := gpu_problems(named, gpus):
        raise InputError("request", *problems[:MAX_PROBLEMS])
    return dict(zip(named, gpus, strict=True))


def _left(gpus: Gpus, count: int, holders: Sequence[tuple[Gpus, str]]) -> str:
    """Return why a host, or ``count`` of these GPUs, is not free; empty if it is free."""
    if not gpus:
        return holders[0][1] if holders else ""
    left = set(gpus)
    for theirs, why in holders:
        left = left.difference(theirs) if theirs else set()
        if len(left) < count:
            return why
    return "" if len(left) >= count else "too small"


def _run(gpus: Sequence[int], count: int) -> Gpus:
    """Return ``count`` consecutive GPUs from a multiple of ``count`` on; else the first ones."""
    ordered, there = sorted(gpus), set(gpus)
    for first in ordered:
        run = range(first, first + count)
        if first % count == 0 and there.issuperset(run):
            return tuple(run)
    return tuple(ordered[:count])


def _check_hosts(hosts: Sequence[str], fabric: Fabric, field: str) -> None:
    known = fabric.structure.nics_of_host
    problems = [
        Problem(f"{field}[{row}]", f"{host[:80]!r} {unknown_host(host, fabric)}")
        for row, host in enumerate(hosts)
        if host not in known
    ]
    twice = [host for host, times in Counter(hosts).items() if times > 1]
    problems += [Problem(field, f"{host!r} is named twice") for host in twice]
    if problems:
        raise InputError("request", *problems[:MAX_PROBLEMS])


def _holders(
    request: pb.RecommendPlacementRequest, intent: Intent, reserved: Sequence[Reservation]
) -> dict[str, list[tuple[Gpus, str]]]:
    """Return what others use of each host: their GPUs (empty: all), and a text about them."""
    found: dict[str, list[tuple[Gpus, str]]] = {}
    for record in intent.jobs:
        if record.job.name != request.replaces:
            for host, gpus in record.job.held.items():
                found.setdefault(host, []).append((gpus, "used by other jobs"))
    for reservation in reserved:
        if reservation.name != request.reservation:
            for host, gpus in reservation.held.items():
                found.setdefault(host, []).append((gpus, "reserved"))
    return found


def _too_few(
    count: int, candidates: Sequence[str], taken: Mapping[str, str], known: Mapping[str, object]
) -> Problem:
    if count > len(known):
        return Problem("host_count", f"it is {count}; the fabric has {len(known)} hosts")
    why = Counter(taken[host] for host in candidates if host in taken)
    told = ", ".join(
        f"{counted(number, 'is', 'are')} {word}" for word, number in sorted(why.items())
    )
    of = f"of {len(candidates)} candidates {told}" if told else f"there are {len(candidates)}"
    return Problem("host_count", f"it is {count}; {of}: wait, or give more candidates")


def score_to_pb(found: Score) -> pb.JobScore:
    """Return the score of a job as a message."""
    return pb.JobScore(
        max_utilization=found.max_utilization,
        slowest_flow=found.slowest_flow,
        network_seconds=found.seconds,
        least_network_seconds=found.least_seconds,
    )


def recommendation_to_pb(found: Recommendation, fabric: Fabric) -> pb.RecommendPlacementResponse:
    """Return recommended placements as a message, each with a reason in words."""
    assert found.first_fit is not None  # it exists if there are placements
    first = found.first_fit.trial.score
    return pb.RecommendPlacementResponse(
        placements=[_placement(one, first, fabric) for one in found.placements],
        first_fit=score_to_pb(first),
    )


def _placement(found: Placement, first_fit: Score, fabric: Fabric) -> pb.Placement:
    trial = found.trial
    return pb.Placement(
        hosts=found.job.hosts,
        gpus=job_codec.gpus_to_pb(found.job.gpus),
        score=score_to_pb(trial.score),
        costs=[
            pb.PlacementCost(
                job=cost.job, before=score_to_pb(cost.before), after=score_to_pb(cost.after)
            )
            for cost in trial.costs
        ],
        slowed_jobs=trial.slowed_jobs,
        cross_zone_gbps=trial.cross_zone_gbps,
        shares_links=trial.shares_links,
        reason=_reason(found, first_fit, fabric),
    )


def _reason(found: Placement, first_fit: Score, fabric: Fabric) -> str:
    """Return a text: where the hosts are, what limits the job, and how many jobs it slows."""
    trial, where = found.trial, places(found.job.held, fabric)
    zones = Counter(zone for place in where.values() for zone in place.zone)
    leaves = {leaf for place in where.values() for leaf in place.leaves}
    hosts = counted(len(found.job.hosts), "host")
    told = [f"{hosts} below {counted(len(leaves), 'leaf', 'leaves')}"]
    zone_names = fabric.structure.zone_names
    if zones and zone_names:
        parts = ", ".join(f"{zone_names[row]} {many}" for row, many in sorted(zones.items()))
        told[0] += f" of {'zone' if len(zones) == 1 else 'zones'} {parts}"
    elif zones:
        told[0] += f" of {counted(len(zones), 'zone')}"
    if trial.cross_zone_gbps:
        told.append(f"{trial.cross_zone_gbps:,.0f} Gbit/s between zones")
    elif fabric.structure.zones.max(initial=NONE) > 0:
        told.append("nothing between zones")
    score = trial.score
    if score.slowest_flow < 1:
        told.append(
            f"link {trial.fullest_link} is asked for {score.max_utilization:.2f} of what it "
            f"has, so its flows get {score.slowest_flow:.0%} of what they ask for"
        )
    else:
        told.append("every flow gets all that it asks for")
    if not trial.final:
        told.append("it may take less time at once, as flows of other jobs may make room")
    if 0 < score.seconds < first_fit.seconds:
        told.append(f"{1 - score.seconds / first_fit.seconds:.0%} less time than on the first fit")
    if trial.slowed_jobs:
        told.append(f"{counted(trial.slowed_jobs, 'other job')} slowed")
    return "; ".join(told)


def reservation_to_pb(fabric: str, one: Reservation) -> pb.Reservation:
    """Return a reservation as a message."""
    return pb.Reservation(
        name=names.reservation_name(fabric, one.name),
        hosts=one.hosts,
        gpus=job_codec.gpus_to_pb(one.gpus),
        create_time=times.time_to_pb(one.create_time),
        end_time=times.time_to_pb(one.end_time),
    )
