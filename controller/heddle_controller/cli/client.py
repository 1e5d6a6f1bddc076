"""The options before a command: which controller to call, how, and about which fabric."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from heddle.client import Client, Credentials, CredentialsError, HeddleError
from heddle_controller.cli.failure import Failure, failure_of
from heddle_controller.cli.output import echo
from heddle_controller.model.errors import refuse

_START = "start it with 'heddle-controller serve', or name another with --server"


@dataclass(frozen=True)
class Terms:
    """The global options; ``api`` is the client that they describe."""

    server: str
    """Addresses, separated by commas."""
    timeout: float
    """Time limit of a call, in seconds."""
    json: bool
    named_fabric: str | None
    files: Credentials = field(default_factory=Credentials)
    told: list[str] = field(default_factory=list)
    """Kinds of notes that were already printed and are not repeated."""

    @cached_property
    def api(self) -> Client:
        """The client, which connects with the first call."""
        try:
            return Client(
                self.server,
                fabric=self.named_fabric or "",
                credentials=self.files,
                timeout=self.timeout,
                patience=0.0,
                note=self._note,
            )
        except ValueError as error:
            raise refuse("--server", "", str(error)) from None

    @property
    def addresses(self) -> tuple[str, ...]:
        """Each address once; first the one that answered last."""
        calls = self.api.operations.calls
        return tuple(dict.fromkeys((calls.addresses[calls.current], *calls.addresses)))

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Turn errors of calls into failures of the command."""
        try:
            yield
        except CredentialsError as error:
            raise Failure(str(error)) from None
        except HeddleError as error:
            raise failure_of(error, error.cure or _START) from error

    @property
    def fabric(self) -> str:
        """Resource name of the fabric: the one that was named, or the only one.

        Raises:
            HeddleError: No fabric was named, and the controller has none or several.
        """
        return self.api.fabric()

    @property
    def plan(self) -> str:
        """Resource name of the fabric's plan."""
        return f"{self.fabric}/plan"

    def _note(self, kind: str, text: str) -> None:
        if kind not in self.told:
            self.told.append(kind)
            echo(f"note: {text}", err=True)
