"""``heddle drain`` and ``undrain``: take a link or a switch out of service, and return it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from heddle.v1 import fabric_pb2
from heddle.v1 import plan_pb2 as pb
from heddle.v1.common_pb2 import STATE_DRAINED, STATE_UP, State
from heddle_controller.cli.client import Terms
from heddle_controller.cli.failure import UNROUTED, Failure
from heddle_controller.cli.options import WHAT, link_ref, ref_text, with_client
from heddle_controller.cli.output import echo, echo_json

_NAMED = 5


@click.command("drain")
@click.argument("what", metavar=WHAT)
@click.option(
    "--force", is_flag=True, help="Drain even if hosts or jobs suffer; the output names them."
)
@click.option("--dry-run", is_flag=True, help="Only predict; exit 2 if the drain would be refused.")
@click.option(
    "--seconds", type=float, help="Exit 2 if it still carries traffic after this many seconds."
)
@with_client
def drain(client: Terms, what: str, seconds: float | None, *, force: bool, dry_run: bool) -> None:
    """Move all flows off a link or a switch, and say when it is safe to unplug.

    The command first predicts the plan without it. It refuses if hosts would be cut off, if flows
    have no other path, or if the slowest flow of a job would become slower; --force drains anyway.
    Then it drains, and ends when no switch holds an entry that sends packets there. The routing
    protocol does not know of the drain: traffic on the underlay may use the link until you shut its
    ports. Exit 3 if flows stay on it.
    """
    target = DrainTarget(what)
    answer = client.api.plans.WhatIf(target.supposed(client.fabric))
    harms = list(harms_of(answer, what))
    if not client.json:
        _echo_prediction(answer, what)
    if harms and not force:
        text = f"{what} was not drained: {harms[0]}"
        raise Failure(f"{text}; --force drains it all the same", details=harms[1:])
    if dry_run:
        if client.json:
            echo_json({"prediction": answer, "harms": harms})
        return
    target.set(client, STATE_DRAINED)
    for harm in () if client.json else harms:
        echo(f"forced: {harm}")
    last = _wait(client, target, seconds, stays=answer.staying_count > 0)
    if client.json:
        told = {"prediction": answer, "harms": harms, "progress": last}
        echo_json({**told, "safe_to_unplug": last.idle})
    elif last.idle:
        echo(f"safe to unplug: no switch sends packets of plan {last.generation} over {what}")
        if last.unrouted_count:
            echo(f"{_flows(last.unrouted_count)} without a path may: shut its ports first")
    else:
        stay = _flows(last.flow_count, "stays", "stay")
        echo(f"NOT safe to unplug: {stay} on {what}, the only way")
    sys.exit(0 if last.idle else UNROUTED)


class DrainTarget:
    """A switch, or a link given by its ends."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._link = link_ref(text) if "," in text else None

    def supposed(self, fabric: str) -> pb.WhatIfRequest:
        """Return a what-if request in which it is drained."""
        request = pb.WhatIfRequest(fabric=fabric)
        if self._link is not None:
            request.links.add(link=self._link, admin_state=STATE_DRAINED)
        else:
            request.switches.add(node=self._text, admin_state=STATE_DRAINED)
        return request

    def watch(self, client: Terms, seconds: float | None) -> Iterator[pb.DrainProgress]:
        """Yield the progress of the drain, whenever it changes."""
        if self._link is not None:
            return client.api.watch_drain(links=[self._link], timeout=seconds)
        return client.api.watch_drain(switches=[self._text], timeout=seconds)

    def set(self, client: Terms, state: State.ValueType) -> None:
        """Set the state that an operator wants."""
        if self._link is not None:
            client.api.fabrics.SetLinkState(
                fabric_pb2.SetLinkStateRequest(
                    fabric=client.fabric, link=self._link, admin_state=state
                )
            )
        else:
            client.api.fabrics.SetSwitchState(
                fabric_pb2.SetSwitchStateRequest(
                    fabric=client.fabric, node=self._text, admin_state=state
                )
            )


def harms_of(answer: pb.WhatIfResponse, what: str) -> Iterator[str]:
    """Yield in words what a drain would harm.

    These are hosts that are cut off, flows that lose their path, flows that stay, and slower jobs.
    """
    if answer.cut_off_hosts:
        yield f"it cuts off {_some(list(answer.cut_off_hosts), 'host', 'hosts')}"
    if answer.unrouted:
        lost = [route.flow for route in answer.unrouted]
        yield f"{_some(lost, 'flow', 'flows')} would lose {_its(lost)} path"
    if answer.staying_count:
        count, named = answer.staying_count, ", ".join(answer.staying_flows[:_NAMED])
        more = f" and {count - _NAMED} more" if count > _NAMED else ""
        have = "has" if count == 1 else "have"
        yield f"{_flows(count)} ({named}{more}) {have} no way but over {what}"
    for job in answer.jobs:
        was, now = job.before, job.after
        if now.share < was.share and not now.unrouted_count > was.unrouted_count:
            link = ref_text(now.link)
            yield (
                f"{_job(job.job)}: its slowest flow, {now.flow}, would get {now.share:.1%} of its "
                f"demand instead of {was.share:.1%}, as {link} would be {now.utilization:.1%} full"
            )


def _job(name: str) -> str:
    return f"job {name}" if name else "flows of no job"


def _its(names: list[str]) -> str:
    return "its" if len(names) == 1 else "their"


def _flows(count: int, does: str = "", do: str = "") -> str:
    return f"1 flow {does}".rstrip() if count == 1 else f"{count} flows {do}".rstrip()


def _some(names: list[str], one: str, many: str) -> str:
    """Return a text such as ``hosts a, b and 3 more``."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{one if len(names) == 1 else many} {', '.join(names[:_NAMED])}{more}"


def _echo_prediction(answer: pb.WhatIfResponse, what: str) -> None:
    was, now = answer.before.certificate, answer.after.certificate
    echo(
        f"without {what}: {_flows(answer.after.changed_count, 'moves', 'move')}, worst link "
        f"{was.max_utilization:.3f} -> {now.max_utilization:.3f}"
    )


def _wait(
    client: Terms, target: DrainTarget, seconds: float | None, *, stays: bool
) -> pb.DrainProgress:
    """Print progress until the target is idle, or until everything that can move has moved."""
    last = pb.DrainProgress()
    for last in target.watch(client, seconds):
        held = last.settled_generation >= last.generation
        if last.idle or (stays and last.planned and last.flow_count and held):
            return last
        if not client.json:
            echo(_step(last))
    raise Failure(f"drained, but NOT safe to unplug after {seconds:g} s: {_step(last)}")


def _step(last: pb.DrainProgress) -> str:
    if last.flow_count or not last.planned:
        return f"plan {last.generation} has {_flows(last.flow_count)} over it"
    behind = ", ".join(last.unsettled_switches[:_NAMED]) or "no switch"
    return f"plan {last.generation} does not use it; waiting for {behind} to hold that plan"


@click.command("undrain")
@click.argument("what", metavar=WHAT)
@with_client
def undrain(client: Terms, what: str) -> None:
    """End a drain: plans may use the link or switch again.

    After a quiet time, flows return to it if that makes the plan better.
    """
    DrainTarget(what).set(client, STATE_UP)
    if client.json:
        echo_json({"undrained": what})
    else:
        echo(f"{what} takes new paths")
