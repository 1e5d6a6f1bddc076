"""Waiting until no switch holds an entry of what was deleted."""

from __future__ import annotations

import math
import time
from typing import cast

import click
import grpc

from heddle.v1 import plan_pb2 as pb
from heddle_controller.cli.client import Client
from heddle_controller.cli.failure import Failure
from heddle_controller.cli.options import Command
from heddle_controller.cli.output import echo

RETRY_SECONDS = 0.5
"""Until a controller that went away is asked again."""


class Withdrawal:
    """How far a fabric is from an intent in which something is gone, by its plans as they come."""

    def __init__(self, version: int) -> None:
        """``version`` is that of the intent."""
        self._version = version
        self._generation: int | None = None
        """Of a plan that answers to the version, as all later ones do; None before the first."""
        self._waiting: tuple[str, ...] = ()

    def done(self, plan: pb.Plan) -> bool:
        """Whether, by this plan, no switch holds or may hold an entry of what is gone."""
        if self._generation is not None and plan.generation < self._generation:
            self._generation = None  # the store lost its plans, and counts them anew
        if self._generation is None and plan.answered_version >= self._version:
            self._generation = plan.generation
        self._waiting = tuple(plan.unsettled_switches)
        return self._generation is not None and plan.settled_generation >= self._generation

    def why_not(self) -> str:
        """What is waited for, in words."""
        if self._generation is None:
            return "no plan without it is known: see heddle show plan, and the controller's log"
        names = ", ".join(self._waiting)
        return f"these switches have not said that its entries are gone: {names}"


def waiting_options(command: Command) -> Command:
    """Gives a command that deletes the options ``wait`` and ``seconds``."""
    wait = click.option(
        "--wait", is_flag=True, help="Exit only when no switch holds an entry of it."
    )
    seconds = click.option(
        "--seconds",
        type=float,
        help="With --wait: exit 2 after so long, and name the switches still waited for.",
    )
    return wait(seconds(command))


def wait_until_gone(client: Client, version: int, seconds: float | None) -> None:
    """Return when no switch holds an entry of what was deleted; a controller may restart meanwhile.

    Args:
        client: Whom to ask.
        version: Of an intent without it, as the controller told; 0: it could not tell.
        seconds: The longest to wait; None: as long as it takes.

    Raises:
        Failure: that took too long, or the controller does not tell.
    """
    if not version:
        raise Failure("deleted, but the controller could not tell when its entries are gone")
    end = time.monotonic() + (math.inf if seconds is None else seconds)
    withdrawal, told = Withdrawal(version), False
    request = pb.WatchPlanRequest(name=client.plan)
    while True:
        limit = None if seconds is None else max(0.0, end - time.monotonic())
        try:
            for plan in client.watch(client.plans.WatchPlan, request, limit):
                if withdrawal.done(plan):
                    return
        except Failure as failure:
            if not _is_away(failure):
                raise
            if not told:
                echo(f"note: {failure.message}: it is asked again and again", err=True)
            told = True
        if time.monotonic() >= end:
            raise Failure(f"deleted, but after {seconds:g} s {withdrawal.why_not()}")
        time.sleep(min(RETRY_SECONDS, max(0.0, end - time.monotonic())))


def _is_away(failure: Failure) -> bool:
    cause = failure.__cause__
    if not isinstance(cause, grpc.RpcError):
        return False
    return cast("grpc.Call", cause).code() is grpc.StatusCode.UNAVAILABLE
