"""``--watch``: a view that is shown again whenever what it shows may be another."""

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
"""How often a view is asked for whose changes no watch of the API tells."""

_HEED_SECONDS = 0.5
"""How late Ctrl-C may be heard.

A signal that another thread takes, or that comes just before a wait begins, does not end the wait.
"""

_Changes = Callable[[Terms], Iterable[object]]


def of_jobs(client: Terms) -> Iterable[object]:
    """Jobs, and their states."""
    return client.api.watch_jobs()


def of_plans(client: Terms) -> Iterable[object]:
    """Plans, and who holds them."""
    return client.api.watch_plans()


def of_fabric(client: Terms) -> Iterable[object]:
    """Links and switches."""
    return client.api.watch_fabric()


def watchable(*changes: _Changes, look: bool = False) -> Callable[[Command], Command]:
    """Gives a view, which takes ``Terms`` first, the option ``--watch``.

    Args:
        changes: What tells that the view may be another. Several changes at once are shown once.
        look: Whether it changes in other ways, too, so that it is asked for every few seconds.
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
    """Show a view, and again with each change, or after so many seconds.

    A fabric without a plan, and a controller that goes away while it is watched, are told of, and
    waited for.
    """

    def shown() -> None:
        with suppress(SystemExit):  # what a view exits with says how things stand; it goes on
            view()

    _ = client.fabric  # known before threads ask for it
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
    """Rung by threads that hear of changes; one waits for it."""

    def __init__(self) -> None:
        self._rung = threading.Event()
        self._error: Exception | None = None

    def follow(self, changes: _Changes, client: Terms) -> None:
        """Ring with each change, and when they end with an error."""
        try:
            for _ in changes(client):
                self.ring()
        except Exception as error:  # noqa: BLE001 - whoever waits raises it
            self._error = error
            self.ring()

    def ring(self) -> None:
        """Something may have changed."""
        self._rung.set()

    def wait(self, seconds: float | None) -> None:
        """Return when it is rung, or after so long; raise what a watch ended with."""
        end = time.monotonic() + (math.inf if seconds is None else seconds)
        while (left := end - time.monotonic()) > 0 and not self._rung.wait(
            min(left, _HEED_SECONDS)
        ):
            pass
        self._rung.clear()
        if self._error is not None:
            raise self._error
