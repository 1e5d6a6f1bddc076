"""``heddle doctor``: what is wrong, and what to do about it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace

import click

from heddle.client import HeddleError
from heddle.names import value_name
from heddle.v1 import doctor_pb2 as pb
from heddle.v1 import fabric_pb2, placement_pb2
from heddle_controller.cli.client import Terms
from heddle_controller.cli.completing import JOBS
from heddle_controller.cli.failure import FAULT, CommandGroup
from heddle_controller.cli.options import last_part, ref_text, with_client
from heddle_controller.cli.output import echo, echo_json, echo_pairs
from heddle_controller.cli.routes import path_text
from heddle_controller.cli.watching import of_fabric, of_jobs, of_plans, watchable
from heddle_controller.serve.codec import times
from heddle_controller.serve.doctor.validity import of_files

CLOCK_SECONDS = 2.0
"""Clocks may differ by this much without a finding; certificates and event times tolerate it."""
_WORDS = {
    pb.SEVERITY_INFO: "ok",
    pb.SEVERITY_WARNING: "warning",
    pb.SEVERITY_ERROR: "ERROR",
}


@click.group(cls=CommandGroup, invoke_without_command=True)
@with_client
@watchable(of_plans, of_fabric, look=True)
def doctor(client: Terms) -> None:
    """Find what is wrong, and say what to do about it.

    Without a command, it checks the installation: agents and their versions, tables, links, the
    plan, the store, certificates and tokens that are about to end, and the clocks of the controller
    and of this machine. If --server has several addresses, one controller tells what it sees, and
    each of the others has to answer. Exit 1 if a finding is a warning or an error.
    """
    context = click.get_current_context()
    if context.invoked_subcommand is not None:
        context.obj = client
        return
    before = time.time()
    request = pb.ExamineInstallationRequest(fabric=client.fabric)
    answer = client.api.doctor.ExamineInstallation(request)
    told_by, *others = client.addresses
    answer.findings.extend(_clock(answer.time.ToNanoseconds() / 1e9, before, time.time()))
    answer.findings.extend(finding for one in others for finding in _silent(client, one))
    answer.findings.extend(of_files("This command's", (client.files.cert, client.files.ca), before))
    if client.json:
        echo_json(answer)
    else:
        echo_findings(answer.findings)
        if not answer.findings:
            echo(f"all is well, as the controller at {told_by} sees it")
        elif others:
            echo(f"as the controller at {told_by} sees it")
    _exit(answer.findings)


def _exit(findings: Iterable[pb.Finding]) -> None:
    """End the command with ``FAULT`` if a finding is a warning or an error."""
    if any(one.severity > pb.SEVERITY_INFO for one in findings):
        sys.exit(FAULT)


def _silent(client: Terms, address: str) -> Iterator[pb.Finding]:
    """Yield a finding if no controller answers at an address."""
    request = fabric_pb2.ListFabricsRequest(page_size=1)
    try:
        with replace(client, server=address).api as api:
            api.fabrics.ListFabrics(request)
    except HeddleError as error:
        yield pb.Finding(
            severity=pb.SEVERITY_WARNING,
            about="controller",
            text=f"No answer from {address}: {error.message}.",
            cure=error.cure or "Start the controller there, or leave the address out of --server",
        )


def _clock(told: float, before: float, after: float) -> Iterator[pb.Finding]:
    """Yield a finding if a clock that was read between two moments differs much from them."""
    off = max(before - told, told - after, 0.0)
    if off > CLOCK_SECONDS:
        yield pb.Finding(
            severity=pb.SEVERITY_WARNING,
            about="clock",
            text=f"The controller's clock is {off:.0f} s off that of this machine.",
            cure="Run NTP or PTP on both",
        )


@doctor.command("job")
@click.argument("name", shell_complete=JOBS)
@with_client
@watchable(of_jobs, of_plans, look=True)
def examine_job(client: Terms, name: str) -> None:
    """Say why a job is slow: its slowest flow, the link that limits it, and who shares that link.

    It also reports whether switches hold the paths, links on the paths that lose packets or are
    slow, the measured rate, and the latest changes. The worst finding comes first; each says what
    to do. Exit 1 if a finding is a warning or an error.
    """
    request = pb.ExamineJobRequest(name=f"{client.fabric}/jobs/{name}")
    answer = client.api.doctor.ExamineJob(request)
    if client.json:
        echo_json(answer)
    else:
        _echo_job(answer)
        echo_findings(answer.findings)
    _exit(answer.findings)


def _echo_job(answer: pb.JobExamination) -> None:
    slowest, route = answer.slowest, answer.route
    state = value_name(placement_pb2.JobState.DESCRIPTOR, answer.state, "JOB_STATE_")
    pairs: dict[str, object] = {
        "job": last_part(answer.name),
        "state": state,
        "plan": answer.generation or "none yet",
    }
    if slowest.flow:
        link = ref_text(slowest.link)
        pairs["slowest flow"] = slowest.flow
        pairs["path"] = "; ".join(map(path_text, route.paths)) or "none"
        pairs["limited by"] = (
            f"{link}, {slowest.utilization:.1%} full" if slowest.link.source else ""
        )
        pairs["expected"] = f"{answer.expected_gbps:.4g} of {route.gbps:g} Gbit/s"
        pairs["measured"] = _measured(answer)
        pairs["packets"] = (
            "pinned to the path" if answer.pinned else "hashed by routing, at least in part"
        )
    echo_pairs(pairs)


def _measured(answer: pb.JobExamination) -> str:
    if not answer.HasField("measured_gbps"):
        return ""
    when = times.time_text(answer.measured_time)
    return f"{answer.measured_gbps:.4g} Gbit/s at {when}"


def echo_findings(findings: Iterable[pb.Finding]) -> None:
    """Print findings, one per line, each followed by what to do."""
    for one in findings:
        echo(f"{_WORDS.get(one.severity, '?'):7}  {one.about}: {one.text}")
        if one.cure:
            echo(f"{'':7}  -> {one.cure}")
