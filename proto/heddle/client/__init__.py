"""The client of Heddle's controllers, for schedulers and other programs. It needs only grpcio.

``Client`` blocks and ``AsyncClient`` is for asyncio. Both do the same, with the same code.
"""

from heddle.client.credentials import Credentials, CredentialsError
from heddle.client.errors import (
    AlreadyExists,
    Closed,
    Conflict,
    Degraded,
    HeddleError,
    InvalidRequest,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    TimedOut,
    Unavailable,
    Unreachable,
    Violation,
)
from heddle.client.faces import AsyncClient, Client
from heddle.client.operations import PLANNED, PROGRAMMED, SUSPENDED
from heddle.client.turns import Turn

__all__ = [
    "PLANNED",
    "PROGRAMMED",
    "SUSPENDED",
    "AlreadyExists",
    "AsyncClient",
    "Client",
    "Closed",
    "Conflict",
    "Credentials",
    "CredentialsError",
    "Degraded",
    "HeddleError",
    "InvalidRequest",
    "NotAllowed",
    "NotFound",
    "PreconditionFailed",
    "TimedOut",
    "Turn",
    "Unavailable",
    "Unreachable",
    "Violation",
]
