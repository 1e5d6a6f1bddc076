"""``heddle overlay``: the panic switch. It moves the whole fabric to the underlay, and back."""

from __future__ import annotations

import time

import click

from heddle.v1 import overlay_pb2 as pb
from heddle_controller.cli.client import Terms
from heddle_controller.cli.failure import FAULT, CommandGroup, Failure
from heddle_controller.cli.options import with_client
from heddle_controller.cli.output import echo_json, echo_pairs
from heddle_controller.cli.watching import watchable
from heddle_controller.serve.codec import times

_WORDS = {pb.OVERLAY_STATE_ACTIVE: "active", pb.OVERLAY_STATE_WITHDRAWN: "WITHDRAWN"}
_LOOK_SECONDS = 0.05


@click.group(cls=CommandGroup)
def overlay() -> None:
    """Move all flows of the fabric to the underlay in one step, and back."""


@overlay.command("withdraw")
@click.option("--no-wait", is_flag=True, help="Do not wait until all agents have done it.")
@with_client
def withdraw(client: Terms, *, no_wait: bool) -> None:
    """Make all switches ignore their entries: the underlay then carries all flows.

    Switches keep their entries, and the entries are kept up to date, so 'heddle overlay restore' is
    one step too. Exit 1 if an agent cannot do it or does not answer in time.
    """
    _set(client, pb.OVERLAY_STATE_WITHDRAWN, no_wait=no_wait)


@overlay.command("restore")
@click.option("--no-wait", is_flag=True, help="Do not wait until all agents have done it.")
@with_client
def restore(client: Terms, *, no_wait: bool) -> None:
    """Make all switches follow their entries again."""
    _set(client, pb.OVERLAY_STATE_ACTIVE, no_wait=no_wait)


@overlay.command("show")
@with_client
@watchable(look=True)
def show(client: Terms) -> None:
    """Show whether the overlay is withdrawn, and how many agents have followed."""
    _echo(client, _get(client))


def _set(client: Terms, state: pb.OverlayState.ValueType, *, no_wait: bool) -> None:
    request = pb.SetOverlayRequest(name=_name(client), state=state)
    stands = client.api.overlays.SetOverlay(request)
    until = time.monotonic() + client.timeout
    while not no_wait and stands.obeying_count < stands.agent_count and not stands.failures:
        if time.monotonic() > until:
            break
        time.sleep(_LOOK_SECONDS)
        stands = _get(client)
    _echo(client, stands)
    if not no_wait and (stands.failures or stands.obeying_count < stands.agent_count):
        missing = stands.agent_count - stands.obeying_count
        failed = [f"{failure.switch}: {failure.message}" for failure in stands.failures]
        raise Failure(f"{missing} agents have not obeyed yet: see their logs", FAULT, failed)


def withdrawal_of(client: Terms) -> str:
    """Return in words that the overlay is withdrawn, and the cure; empty if it is not."""
    stands = _get(client)
    if stands.state != pb.OVERLAY_STATE_WITHDRAWN:
        return ""
    since = times.time_text(stands.state_time)
    text = f"OVERLAY WITHDRAWN since {since}: no switch follows a plan"
    return f"{text}; 'heddle overlay restore' ends that"


def _get(client: Terms) -> pb.Overlay:
    return client.api.overlays.GetOverlay(pb.GetOverlayRequest(name=_name(client)))


def _name(client: Terms) -> str:
    return f"{client.fabric}/overlay"


def _echo(client: Terms, stands: pb.Overlay) -> None:
    if client.json:
        echo_json(stands)
        return
    counted = f"{stands.obeying_count} of {stands.agent_count} connected to this controller"
    echo_pairs(
        {
            "overlay": _WORDS[stands.state],
            "since": times.time_text(stands.state_time),
            "agents": counted,
        }
    )
