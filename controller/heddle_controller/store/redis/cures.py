"""What to do where a Redis cannot be had at the start: said by what was in the way.

Most of what fails at the first start is not a server that is down: a password that is
missing, an authority that is not the one, a file that is not there. Who is then told to
start the server looks in the wrong place.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator

from redis.exceptions import AuthenticationError

from heddle_controller.state.errors import Unusable
from heddle_controller.store.redis.address import Files

_START = "Start it, or name another with --store"
PASSWORD = "Give the user and the password that it wants: --store SCHEME://USER:PASSWORD@HOST"  # noqa: S105 - the form of one
TRUST = (
    "Name the authority that its certificate is of with --store-ca, and, where it asks for "
    "one, a certificate with --store-cert and --store-key"
)


CLOSED = "closed by server"
"""In what the library says of a connection that the server has ended."""


def redis_cure(error: BaseException, *, tls: bool) -> str:
    """What to do about a failed first call.

    Over ``tls`` a server that does not take our certificate says so only after we believe the
    connection made, and ends it: what arrives first, its word or the end, is a matter of luck.
    """
    behind = list(_behind(error))
    if any(isinstance(one, AuthenticationError) for one in behind):
        return PASSWORD
    if any(isinstance(one, ssl.SSLError) or (tls and _is_end(one)) for one in behind):
        return TRUST
    return _START


def _is_end(error: BaseException) -> bool:
    """Whether a connection that was made has been ended."""
    ends = ConnectionResetError, BrokenPipeError, EOFError
    return isinstance(error, ends) or CLOSED in str(error)


def _behind(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that it came of."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def check_readable(files: Files) -> None:
    """Nothing where all files can be read. Raises ``Unusable`` naming the first that cannot."""
    for option, path in (
        ("--store-ca", files.ca),
        ("--store-cert", files.cert),
        ("--store-key", files.key),
    ):
        try:
            if path is not None:
                path.open("rb").close()
        except OSError as error:
            raise Unusable(
                f"store: {option} {path}: {error.strerror}: give a PEM file that can be read"
            ) from None
