# ruff: noqa: N818 - each is named for the gRPC status it becomes, as callers know it
"""How the ports of reconcile fail: small typed errors that serve maps to statuses.

| error | when | status |
|---|---|---|
| NotFound | no such record | NOT_FOUND |
| AlreadyExists | the name is taken | ALREADY_EXISTS |
| Conflict | the etag is not that of the stored record | ABORTED |
| RequestReused | a request id came again with another request | INVALID_ARGUMENT |
| FailedPrecondition | well-formed, but not now: hosts in use | FAILED_PRECONDITION |
| StaleEpoch, StaleGeneration | another leader wrote, or another plan was committed | ABORTED |
| Unavailable | the store cannot be reached or written now | UNAVAILABLE |
| Unusable | the store can never work as it is: corrupt, too new, already led | the process ends |

Faulty input is ``model.errors.InputError`` (INVALID_ARGUMENT), never one of these.
"""

from __future__ import annotations

from heddle_controller.model.errors import Problem


class PortError(Exception):
    """Base of all; ``str()`` is one line for people."""


class NotFound(PortError):
    """There is no such record."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} does not exist")
        self.name = name


class AlreadyExists(PortError):
    """The name is taken."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} exists already; update it, or choose another name")
        self.name = name


class Conflict(PortError):
    """The etag given is not that of the stored record."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} has changed since it was read; read it again and retry")
        self.name = name


class RequestReused(PortError):
    """A request id that stands for another request already."""

    def __init__(self, request_id: str) -> None:
        super().__init__(
            f"request id {request_id!r} was used for another request; give each its own"
        )
        self.request_id = request_id


class FailedPrecondition(PortError):
    """A request that is well-formed but cannot be had as things stand.

    ``problems`` holds at least one; ``str()`` tells the first and how many more.
    """

    def __init__(self, source: str, *problems: Problem) -> None:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"{source}: {problems[0]}{more}")
        self.source = source
        self.problems = problems


class StaleEpoch(PortError):
    """A newer leader has written; this one must stop."""

    def __init__(self, epoch: int, newest: int) -> None:
        super().__init__(f"epoch {epoch} is over: a leader with epoch {newest} has taken its place")
        self.epoch = epoch
        self.newest = newest


class StaleGeneration(PortError):
    """Another plan was committed since the one this commit follows."""

    def __init__(self, expected: int, newest: int) -> None:
        super().__init__(f"the newest plan is generation {newest}, not {expected}")
        self.expected = expected
        self.newest = newest


class Unavailable(PortError):
    """The store cannot serve now; a later try may succeed.

    ``retry_after`` is a hint in seconds.
    """

    def __init__(self, reason: str, retry_after: float = 1.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class Unusable(PortError):
    """The store cannot be used until somebody mends it; the text names the cure."""


class SessionLost(PortError):
    """The agent's session ended before the push was answered."""

    def __init__(self, switch: str) -> None:
        super().__init__(f"switch {switch} went away before it answered")
        self.switch = switch
