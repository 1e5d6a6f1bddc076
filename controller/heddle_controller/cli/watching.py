"""The option ``--watch``: shows a view again whenever it may have changed."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import wraps
from typing import Any

import click

from heddle.client import HeddleError
from heddle.client.calls import LONGEST_PAUSE, may_pass
from heddle_controller.cli.client import Terms
from heddle_controller.cli.options import Command
from heddle_controller.cli.output import Screen, printed_by

_LOOK_SECONDS = 5.0
"""Interval at which a view is refreshed if no watch of the API announces all of its changes."""

_HEED_SECONDS = 0.5
"""Longest time until Ctrl-C is noticed.

A signal that another thread receives, or that comes just before a wait begins, does not end the
wait.
"""

_Changes = Callable[[Terms], Iterable[object]]


def of_jobs(client: Terms) -> Iterable[object]:
    """Watch jobs and their states."""
    return client.api.watch_jobs()


def of_plans(client: Terms) -> Iterable[object]:
    """Watch plans, and which switches hold them."""
    return client.api.watch_plans()


def of_fabric(client: Terms) -> Iterable[object]:
    """Watch links and switches."""
    return client.api.watch_fabric()


def watchable(*changes: _Changes, look: bool = False) -> Callable[[Command], Command]:
    """Return a decorator that adds ``--watch`` to a view, which takes ``Terms`` first.

    Args:
        changes: Watches that announce changes. Several changes at once refresh the view once.
        look: Whether the view also changes in other ways, so it is refreshed every few seconds.
    """

    def decorated(view: Command) -> Command:
        @click.option(
            "--watch", is_flag=True, help="Show it again after each change, until Ctrl-C."
        )
        @wraps(view)
        def run(client: Terms, /, *args: Any, watch: bool, **options: Any) -> Any:  # noqa: ANN401 - click's
            if not watch:
                return view(client, *args, **options)
            if click.get_current_context().invoked_subcommand is not None:
                raise click.UsageError("--watch: write it behind the last command")
            return _watch(
                client,
                lambda: view(client, *args, **options),
                changes,
                _LOOK_SECONDS if look else None,
            )

        return run

    return decorated


def _watch(
    client: Terms, view: Callable[[], object], changes: Iterable[_Changes], seconds: float | None
) -> None:
    """Show a view, and show it again after each change or after ``seconds``.

    If the fabric has no plan yet, or the controller becomes unreachable after the first view, a
    note is printed and the watch goes on.
    """

    def shown() -> None:
        with suppress(SystemExit):  # an exit status does not end the watch
            view()

    _ = client.fabric  # find it out before threads need it
    bell = _Bell()
    for each in changes:
        threading.Thread(target=bell.follow, args=(each, client), daemon=True).start()
    with Screen(documents=client.json) as screen:
        begun = False
        while True:
            try:
                text = printed_by(shown)
            except HeddleError as error:
                if error.reason == "NO_PLAN":
                    client.api.operations.calls.note("waiting", error.message)
                    bell.wait(seconds)
                    continue
                if not begun or not may_pass(error):
                    raise
                client.api.operations.calls.note("lost", f"{error.message}: it is asked again")
                bell.wait(LONGEST_PAUSE)
            else:
                begun = True
                screen.show(text)
                bell.wait(seconds)


class _Bell:
    """Threads that see changes ring it; the main thread waits for it."""

    def __init__(self) -> None:
        self._rung = threading.Event()
        self._error: Exception | None = None

    def follow(self, changes: _Changes, client: Terms) -> None:
        """Ring at each change, and if the watch ends with an error."""
        try:
            for _ in changes(client):
                self.ring()
        except Exception as error:  # noqa: BLE001 - whoever waits raises it
            self._error = error
            self.ring()

    def ring(self) -> None:
        """Signal that something may have changed."""
        self._rung.set()

    def wait(self, seconds: float | None) -> None:
        """Return when it is rung or the time is over; raise the error of a watch that failed."""
        end = time.monotonic() + (math.inf if seconds is None else seconds)
        while (left := end - time.monotonic()) > 0 and not self._rung.wait(
            min(left, _HEED_SECONDS)
        ):
            pass
        self._rung.clear()
        if self._error is not None:
            raise self._error
