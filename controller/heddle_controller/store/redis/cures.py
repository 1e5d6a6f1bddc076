"""What to do where a Redis cannot be had at the start: said by what was in the way.

Most of what fails at the first start is not a server that is down: a password that is
missing, an authority that is not the one, a file that is not there. Who is then told to
start the server looks in the wrong place.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator

from redis.exceptions import AuthenticationError

from heddle_controller.reconcile.errors import Unusable
from heddle_controller.store.redis.address import Files

START = "Start it, or name another with --store"
PASSWORD = "Give the user and the password that it wants: --store SCHEME://USER:PASSWORD@HOST"  # noqa: S105 - the form of one
TRUST = (
    "Name the authority that its certificate is of with --store-ca, and, where it asks for "
    "one, a certificate with --store-cert and --store-key"
)


def cure_of(error: BaseException) -> str:
    """What to do about a failed first call."""
    behind = list(_behind(error))
    if any(isinstance(one, AuthenticationError) for one in behind):
        return PASSWORD
    if any(isinstance(one, ssl.SSLError) for one in behind):
        return TRUST
    return START


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
