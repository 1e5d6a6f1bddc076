"""How a command fails: one line that says what and how to cure it, and an exit code.

| code | meaning |
|---|---|
| 0 | done |
| 1 | the controller failed, or the command was interrupted |
| 2 | bad input, a request that was refused, or no controller to reach |
| 3 | done, but some flow has no path |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, cast

import click
import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from heddle.text import clean
from heddle_controller.model.errors import InputError

FAULT = 1
REFUSED = 2
UNROUTED = 3

EXIT_CODES = """\b
Exit codes:
  0  done
  1  the controller failed, or the command was interrupted
  2  bad input, a refused request, or no controller to reach
  3  done, but some flow has no path
"""


class Failure(click.ClickException):
    """One line for people, with further lines where a server told several problems."""

    def __init__(self, message: str, exit_code: int = REFUSED, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.code = exit_code
        self.details = tuple(details)

    @property
    def exit_code(self) -> int:  # type: ignore[override] # click reads it, nobody sets it
        """What the process exits with."""
        return self.code

    def show(self, file: IO[Any] | None = None) -> None:
        """Print to standard error."""
        click.echo(clean(f"error: {self.message}"), file=file, err=file is None)  # noqa: TID251
        for detail in self.details:
            click.echo(clean(f"  {detail}"), file=file, err=file is None)  # noqa: TID251


class CommandGroup(click.Group):
    """A group whose commands may raise ``InputError``."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; refused input becomes a failure."""
        try:
            return super().invoke(ctx)
        except InputError as error:
            raise Failure(str(error)) from error


@contextmanager
def calling(server: str, unreached: Callable[[str], str]) -> Iterator[None]:
    """Turns what a call to the server ends in into a failure.

    Args:
        server: Its address.
        unreached: What to say of one that was not reached, given gRPC's words.

    Raises:
        Failure: in the server's words where it answered, else naming its address.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise _failure(cast("grpc.Call", error), server, unreached) from error


def _failure(error: grpc.Call, server: str, unreached: Callable[[str], str]) -> Failure:
    code, text = error.code(), error.details() or ""
    status = rpc_status.from_call(error)
    if status is None and code is grpc.StatusCode.UNAVAILABLE:
        return Failure(unreached(text))
    if status is None and code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return Failure(
            f"the controller at {server} did not answer in time: give it more by --timeout"
        )
    if status is None:
        return Failure(f"{code.name}: {_short(text)}")
    exit_code = FAULT if code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN) else REFUSED
    return Failure(text + _when_again(status.details), exit_code, _problems(status.details))


def _when_again(details: Sequence[Any]) -> str:
    """The server's hint when to ask once more, if it gave one."""
    hint = error_details_pb2.RetryInfo()
    if not any(_unpack(detail, hint) for detail in details):
        return ""
    return f" (try again in {hint.retry_delay.ToTimedelta().total_seconds():.2g} s)"


def _short(text: str) -> str:
    """The last part of what gRPC says: its texts nest, the cause comes last."""
    return text.splitlines()[0].rpartition(": ")[2][:200] if text else "no reason told"


def _problems(details: Sequence[Any]) -> list[str]:
    """Field violations, one a line; the first is in the message already."""
    bad, failed = error_details_pb2.BadRequest(), error_details_pb2.PreconditionFailure()
    lines = []
    for detail in details:
        if _unpack(detail, bad):
            lines += [f"{v.field}: {v.description}" for v in bad.field_violations]
        elif _unpack(detail, failed):
            lines += [f"{v.subject}: {v.description}" for v in failed.violations]
    return lines if len(lines) > 1 else []


def _unpack(detail: Any, into: Message) -> bool:  # noqa: ANN401 - a protobuf Any
    return bool(detail.Is(into.DESCRIPTOR) and detail.Unpack(into))
