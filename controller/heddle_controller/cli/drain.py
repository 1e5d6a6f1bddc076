"""``heddle drain`` and ``undrain``: take a link or a switch out of service, and return it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from shlex import quote

import click

from heddle.client import Conflict, TimedOut
from heddle.names import link_name
from heddle.text import some_of
from heddle.v1 import common_pb2, fabric_pb2
from heddle.v1 import plan_pb2 as pb
from heddle.v1.common_pb2 import STATE_DOWN, STATE_DRAINED, STATE_UP, State
from heddle_controller.cli.client import Terms
from heddle_controller.cli.completing import SWITCHES_AND_LINKS
from heddle_controller.cli.failure import UNROUTED, Failure
from heddle_controller.cli.options import WHAT, Named, naming, ref_text, state_word, with_client
from heddle_controller.cli.output import echo, echo_json, progress
from heddle_controller.cli.overlay import withdrawal_of

_NAMED = 5
_LONGEST = 31_536_000.0
"""Most seconds to wait: a year."""


@click.command("drain")
@click.argument("what", metavar=WHAT, shell_complete=SWITCHES_AND_LINKS)
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
    If there are many flows, a worse plan may hold for the first second. Then it drains, and ends
    when no switch holds an entry that sends packets there. The routing protocol does not know of
    the drain: traffic on the underlay may use the link until you shut its ports. Exit 3 if flows
    stay on it, or if the overlay is withdrawn.
    """
    if seconds is not None and not 0 < seconds <= _LONGEST:
        raise Failure(f"--seconds {seconds:g}: give a number above 0 and at most {_LONGEST:.0f}")
    withdrawn = withdrawal_of(client)
    if withdrawn and not client.json:
        echo(f"{withdrawn}; the prediction holds when that has ended")
    prediction = _predicted(client, what, force=force, dry_run=dry_run)
    while not dry_run and not prediction.target.take_out(client, prediction.states):
        prediction = _predicted(client, what, force=force)  # the states have changed
    if dry_run:
        return
    last = _wait(client, prediction.target, seconds)
    if client.json:
        told = {"prediction": prediction.answer, "harms": prediction.harms, "progress": last}
        echo_json({**told, "safe_to_unplug": last.idle})
    elif last.idle:
        echo(f"safe to unplug: no switch sends packets of plan {last.generation} over {what}")
        if last.unrouted_count:
            echo(f"{_flows(last.unrouted_count)} without a path may: shut its ports first")
    else:
        for reason in _unsafe(last, what):
            echo(f"NOT safe to unplug: {reason}")
    sys.exit(0 if last.idle else UNROUTED)


def _predicted(client: Terms, what: str, *, force: bool, dry_run: bool = False) -> _Prediction:
    """Predict a drain and print that.

    Raises:
        Failure: The drain would harm, and ``force`` is not given.
    """
    states = _States.of(client)

    def ask(named: Mapping[str, Named]) -> tuple[DrainTarget, pb.WhatIfResponse]:
        target = DrainTarget(what, named[what])
        try:
            return target, client.api.plans.WhatIf(target.supposed(client.fabric, states))
        except TimedOut as error:
            more = "" if error.told else "give it more by --timeout, or "
            text = f"{what} was not drained: its prediction took too long ({error.message})"
            cure = f"{more}drain it without one: {target.command('drained')}"
            raise Failure(f"{text}: {cure}") from None

    with progress(f"predicting the plan without {what}"):
        target, answer = naming(client, [what], ask)
    harms = list(harms_of(answer, what))
    refused = bool(harms) and not force
    if not client.json:
        _echo_prediction(answer, what)
    elif dry_run or refused:
        echo_json({"prediction": answer, "harms": harms})
    if refused:
        text = f"{what} was not drained: {harms[0]}"
        raise Failure(f"{text}; --force drains it all the same", details=harms[1:])
    if not (dry_run or client.json):
        for harm in harms:
            echo(f"forced: {harm}")
        if target.admin_state(states) == STATE_DOWN:
            echo(f"{what} stays down, as an operator set it: no plan uses it")
    return _Prediction(target, states, answer, harms)


def _unsafe(last: pb.DrainProgress, what: str) -> Iterator[str]:
    """Yield in words why something that is drained must not be unplugged."""
    if last.withdrawn:
        yield (
            f"the overlay is withdrawn, so routing hashes all flows, also over {what}; shut its "
            "ports first, or run: heddle overlay restore"
        )
    if last.path_count:
        yield f"{_flows(last.path_count, 'stays', 'stay')} on {what}, the only way"


@dataclass(frozen=True, slots=True)
class _Prediction:
    """What a drain would do."""

    target: DrainTarget
    states: _States
    """The states that it was made for."""
    answer: pb.WhatIfResponse
    harms: list[str]


@dataclass(frozen=True, slots=True)
class _States:
    """Which links and switches are not up."""

    etag: str
    """Etag of the fabric that has these states."""
    links: tuple[fabric_pb2.Link, ...]
    switches: Mapping[str, int]
    """The state that an operator wants, by switch."""

    @classmethod
    def of(cls, client: Terms) -> _States:
        """Ask for the states as they are now."""
        etag, links, switches = "", list[fabric_pb2.Link](), dict[str, int]()
        for event in client.api.watch_fabric():
            match event.WhichOneof("event"):
                case "fabric":
                    etag = event.fabric.etag
                case "link":
                    links.append(event.link)
                case "node":
                    switches[event.node.id] = event.node.admin_state
                case "synced":
                    break
        return cls(etag, tuple(links), switches)

    def between(self, link: common_pb2.LinkRef) -> list[fabric_pb2.Link]:
        """Return the links that a reference may mean and that are not up."""
        ends = {link.source, link.target}
        return [
            one
            for one in self.links
            if {one.source, one.target} == ends and link.key in ("", one.key)
        ]

    def of_switch(self, switch: str) -> list[fabric_pb2.Link]:
        """Return the links of a switch that an operator does not want up."""
        return [
            one
            for one in self.links
            if switch in (one.source, one.target) and one.admin_state != STATE_UP
        ]


class DrainTarget:
    """A switch, or a link given by its ends."""

    def __init__(self, text: str, named: Named) -> None:
        """``text`` names it, and is what messages call it."""
        self._text = text
        self._link = None if isinstance(named, str) else named

    def command(self, state: str) -> str:
        """Return the command that only sets its state."""
        return _command("switch" if self._link is None else "link", self._text, state)

    def supposed(self, fabric: str, states: _States) -> pb.WhatIfRequest:
        """Return a what-if request in which it is out of service."""
        state = self._out(states)
        request = pb.WhatIfRequest(fabric=fabric)
        if self._link is not None:
            request.links.add(link=self._link, admin_state=state)
        else:
            request.switches.add(node=self._text, admin_state=state)
        return request

    def watch(self, client: Terms, seconds: float | None) -> Iterator[pb.DrainProgress]:
        """Yield the progress of the drain, whenever it changes."""
        if self._link is not None:
            return client.api.watch_drain(links=[self._link], timeout=seconds)
        return client.api.watch_drain(switches=[self._text], timeout=seconds)

    def admin_state(self, states: _States) -> int:
        """Return the state that an operator wants of it; of parallel links, that of the first."""
        if self._link is None:
            return states.switches.get(self._text, STATE_UP)
        return next((one.admin_state for one in states.between(self._link)), STATE_UP)

    def _out(self, states: _States) -> State.ValueType:
        """Return drained, or down if an operator wants it down already."""
        return STATE_DOWN if self.admin_state(states) == STATE_DOWN else STATE_DRAINED

    def take_out(self, client: Terms, states: _States) -> bool:
        """Take it out of service, unless the fabric has other states by now; return if it did."""
        return self._set(client, self._out(states), states.etag)

    def bring_up(self, client: Terms, states: _States) -> bool:
        """Bring it up, unless the fabric has other states by now; return whether it did."""
        return self._set(client, STATE_UP, states.etag)

    def _set(self, client: Terms, state: State.ValueType, etag: str) -> bool:
        try:
            self._ask(client, state, etag)
        except Conflict:
            return False
        return True

    def _ask(self, client: Terms, state: State.ValueType, etag: str) -> None:
        if self._link is not None:
            client.api.fabrics.SetLinkState(
                fabric_pb2.SetLinkStateRequest(
                    fabric=client.fabric, link=self._link, admin_state=state, etag=etag
                )
            )
        else:
            client.api.fabrics.SetSwitchState(
                fabric_pb2.SetSwitchStateRequest(
                    fabric=client.fabric, node=self._text, admin_state=state, etag=etag
                )
            )

    def hindrances(self, states: _States) -> Iterator[str]:
        """Yield in words what keeps plans from using it, apart from its own drain."""
        if self._link is not None:
            for switch in (self._link.source, self._link.target):
                if switch in states.switches:
                    yield _hindrance("switch", switch, states.switches[switch])
            if any(one.oper_state == STATE_DOWN for one in states.between(self._link)):
                yield "agents report that it is down: see to its cable and optics"
            return
        for link in states.of_switch(self._text)[:_NAMED]:
            name = link_name(link.source, link.target, link.key)
            yield _hindrance("link", name, link.admin_state)


def _hindrance(kind: str, name: str, state: int) -> str:
    cure = _command(kind, name, "up")
    if state == STATE_DRAINED:
        cure = f"heddle undrain {quote(name)}"
    return f"its {kind} {name} is {state_word(state)}: {cure}"


def harms_of(answer: pb.WhatIfResponse, what: str) -> Iterator[str]:
    """Yield in words what a drain would harm.

    These are hosts and NICs that are cut off, flows that lose their path, flows that stay, and
    slower jobs.
    """
    if answer.cut_off_hosts:
        yield f"it cuts off {_some(list(answer.cut_off_hosts), 'host', 'hosts')}"
    if answer.cut_off_nics:
        yield f"it cuts off {_some(list(answer.cut_off_nics), 'NIC', 'NICs')}"
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
    return f"{one if len(names) == 1 else many} {some_of(names, _NAMED)}"


def _echo_prediction(answer: pb.WhatIfResponse, what: str) -> None:
    was, now = answer.before.certificate, answer.after.certificate
    echo(
        f"without {what}: {_flows(answer.after.changed_count, 'moves', 'move')}, worst link "
        f"{was.max_utilization:.3f} -> {now.max_utilization:.3f}"
    )


def _wait(client: Terms, target: DrainTarget, seconds: float | None) -> pb.DrainProgress:
    """Print progress until the target is idle, or until everything that can move has moved."""
    step = "the controller has not answered"
    for last in target.watch(client, seconds):
        stays = last.path_count and last.settled_generation >= last.generation
        if last.idle or (last.planned and (stays or last.withdrawn)):
            return last
        step = _step(last)
        if not client.json:
            echo(step)
    raise Failure(f"drained, but NOT safe to unplug after {seconds:g} s: {step}")


def _step(last: pb.DrainProgress) -> str:
    if not last.generation:
        return "waiting for the first plan"
    if last.flow_count or not last.planned:
        spare = last.flow_count - last.path_count
        backups = f", and backups of {spare} more" if spare else ""
        return f"plan {last.generation} has {_flows(last.path_count)} over it{backups}"
    behind = ", ".join(last.unsettled_switches[:_NAMED]) or "no switch"
    return f"plan {last.generation} does not use it; waiting for {behind} to hold that plan"


@click.command("undrain")
@click.argument("what", metavar=WHAT, shell_complete=SWITCHES_AND_LINKS)
@with_client
def undrain(client: Terms, what: str) -> None:
    """End a drain: plans may use the link or switch again.

    After a quiet time, flows return to it if that makes the plan better. The command says what else
    keeps plans from using it. Exit 2 if it is not drained itself, but something else is in the way.
    """

    def bring_up(named: Mapping[str, Named]) -> tuple[DrainTarget, _States]:
        target, states = DrainTarget(what, named[what]), _States.of(client)
        while _check_not_down(target, what, states) and not target.bring_up(client, states):
            states = _States.of(client)
        return target, states

    target, states = naming(client, [what], bring_up)
    others = list(target.hindrances(states))
    drained = target.admin_state(states) == STATE_DRAINED
    if others and not drained:
        raise Failure(f"{what} is not drained itself; {others[0]}", details=others[1:])
    if client.json:
        echo_json({"undrained": what, "was_drained": drained, "hindrances": others})
        return
    if drained and not others:
        echo(f"{what} takes new paths")
    elif drained:
        echo(f"{what} is drained no more, but not all of it takes new paths:")
        for one in others:
            echo(f"  {one}")
    else:
        echo(f"{what} was not drained: nothing changes")


def _check_not_down(target: DrainTarget, what: str, states: _States) -> bool:
    """Return True; raise ``Failure`` if an operator wants the target down."""
    if target.admin_state(states) == STATE_DOWN:
        text = f"{what} is not drained but down, as an operator set it"
        raise Failure(f"{text}: {target.command('up')}")
    return True


def _command(kind: str, name: str, state: str) -> str:
    """Return the command that only sets the state of a link or a switch."""
    return f"heddle fabric {kind} {quote(name)} {state}"
