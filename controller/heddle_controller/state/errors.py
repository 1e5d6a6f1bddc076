# ruff: noqa: N818 - each is named for the gRPC status it becomes, as callers know it
"""Errors of the store and of agent sessions, which ``serve`` maps to gRPC statuses.

| error | when | status |
|---|---|---|
| NotFound | there is no such record | NOT_FOUND |
| AlreadyExists | the name is taken | ALREADY_EXISTS |
| Conflict | the etag is not that of the stored record | ABORTED |
| RequestReused | a request id was used again for a different request | INVALID_ARGUMENT |
| FailedPrecondition | well-formed, but not possible now: hosts in use | FAILED_PRECONDITION |
| StaleEpoch, StaleGeneration | another leader wrote, or another plan was committed | ABORTED |
| Unavailable | the store cannot be reached or written now | UNAVAILABLE |
| Unusable | the store can never work as it is: corrupt, too new, already led | the process ends |

``SessionLost`` stays inside the controller. Faulty input raises ``model.errors.InputError``
(INVALID_ARGUMENT), never one of these.
"""

from __future__ import annotations

from heddle_controller.model.errors import Problem, first_of


class PortError(Exception):
    """Base class of these errors. ``str()`` gives one line for people."""


class NotFound(PortError):
    """There is no such record."""

    def __init__(self, name: str, cure: str) -> None:
        super().__init__(f"{name} does not exist; {cure}")
        self.name = name


class FabricDeleted(NotFound):
    """There is no such fabric, because somebody has deleted it.

    ``generation`` is the one that the deletion took: all plans of the fabric have lower ones.
    ``intent`` is the version of the intent since the deletion.
    """

    generation = 0
    intent = 0


def unknown_fabric(fabric: str) -> NotFound:
    """Return the error that there is no such fabric."""
    return NotFound(f"fabrics/{fabric}", _PUT_IT)


def deleted_fabric(fabric: str, generation: int, intent: int) -> FabricDeleted:
    """Return the error that there is no such fabric any more."""
    error = FabricDeleted(f"fabrics/{fabric}", _PUT_IT)
    error.generation, error.intent = generation, intent
    return error


_PUT_IT = "name one of 'heddle fabric list', or put it by 'heddle fabric import'"


class AlreadyExists(PortError):
    """The name is taken."""

    def __init__(self, name: str, cure: str) -> None:
        super().__init__(f"{name} exists already; {cure}")
        self.name = name


class Conflict(PortError):
    """The etag given is not that of the stored record."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} has changed since it was read; read it again and retry")
        self.name = name


class RequestReused(PortError):
    """The request id was already used for a different request."""

    def __init__(self, request_id: str) -> None:
        super().__init__(
            f"request id {request_id!r} was used for another request; give each its own"
        )
        self.request_id = request_id


class FailedPrecondition(PortError):
    """The request is well-formed but cannot be granted in the present state.

    ``problems`` holds at least one. ``str()`` gives the first and says how many more there are.
    """

    def __init__(self, source: str, *problems: Problem) -> None:
        super().__init__(f"{source}: {first_of(problems)}")
        self.source = source
        self.problems = problems


class StaleEpoch(PortError):
    """The leadership of this epoch is over, so whoever works for it must stop.

    ``newest`` is not above ``epoch`` if no later leader is known, as when the store is lost.
    """

    def __init__(self, epoch: int, newest: int) -> None:
        later = f"a leader with epoch {newest} has taken its place"
        nobody = "its leadership is lost, and no later leader is known"
        super().__init__(f"epoch {epoch} is over: {later if newest > epoch else nobody}")
        self.epoch = epoch
        self.newest = newest


class StaleGeneration(PortError):
    """Another plan was committed after the one that this commit should follow."""

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
    """The store cannot be used until somebody repairs it. The text says how."""


class SessionLost(PortError):
    """The agent's session ended before the push was answered."""

    def __init__(self, switch: str) -> None:
        super().__init__(f"switch {switch} went away before it answered")
        self.switch = switch
