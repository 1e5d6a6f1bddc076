"""Bearer tokens: for clients that cannot have a certificate.

A token is ``heddle.NAME.SECRET`` with 32 random bytes for a secret; the controller's file
keeps only SHA-256 of the whole (no slow hash is needed for what cannot be guessed):

    # name    role       expires                hash              (agents: fabric, switch;
                                                                           hosts: fabric, host)
    slurm     scheduler  2027-01-01T00:00:00Z   9f86d081884c7d65…

The file is read again when it changes, so a line taken out ends a token at once.
Comparison takes the same time whatever is presented. Over plain text a token is taken
only from this host: elsewhere everybody on the way could have read it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from heddle_controller.model.errors import InputError, Problem, refuse
from heddle_controller.serve.security.caller import Caller
from heddle_controller.serve.security.certificates import ONE_NODE, ROLES

log = structlog.stdlib.get_logger(__name__)

_PREFIX = "heddle"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HASH = re.compile(r"[0-9a-f]{64}")
_TOKEN = re.compile(rf"{_PREFIX}\.([A-Za-z0-9_-]{{1,64}})\.([A-Za-z0-9_-]{{43}})")
_WORDS = 4
_NODE_WORDS = 6
_NOTHING = "0" * 64


@dataclass(frozen=True, slots=True)
class Grant:
    """One line of the file."""

    name: str
    caller: Caller
    expires: float
    """Unix seconds."""
    hash: str

    def line(self) -> str:
        """The line that says it."""
        until = datetime.fromtimestamp(self.expires, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        of = self.caller
        words = (self.name, of.role, until, self.hash, of.fabric, of.speaks_for)
        return " ".join(filter(None, words))


def new_token(caller: Caller, name: str, expires: float) -> tuple[str, Grant]:
    """A token, told this once, and the grant that the file shall hold.

    Raises:
        ValueError: the name cannot be part of a token.
    """
    if not _NAME.fullmatch(name):
        msg = f"{name!r} is not a name for a token: use letters, digits, _ and -, at most 64"
        raise ValueError(msg)
    token = f"{_PREFIX}.{name}.{secrets.token_urlsafe(32)}"
    return token, Grant(name, caller, expires, _hash(token))


class TokenFile:
    """The grants of one file."""

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        """Raises ``InputError`` for a file that cannot be used."""
        self._path = path
        self._now = now
        self._seen = _stamp(path)
        self._grants = read_grants(path)

    def caller(self, token: str) -> Caller | None:
        """The holder of a token; None if it is nobody's, or no longer."""
        self._refresh()
        found = _TOKEN.fullmatch(token)
        grant = self._grants.get(found[1]) if found else None
        known = hmac.compare_digest(_hash(token), grant.hash if grant else _NOTHING)
        if grant is None or not known or self._now() >= grant.expires:
            return None
        of = grant.caller
        return Caller(of.role, f"token {grant.name}", of.fabric, of.speaks_for)

    def stamp(self) -> object:
        """Changes with the file."""
        return _stamp(self._path)

    def _refresh(self) -> None:
        stamp = _stamp(self._path)
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._grants = read_grants(self._path)
        except InputError as error:
            # A file that nobody can read says that nobody has a token, not that all still have.
            self._grants = {}
            log.error("no token is taken until the file is put right", why=str(error))  # noqa: TRY400
        else:
            log.info("tokens read again", tokens=len(self._grants))


def read_grants(path: Path) -> dict[str, Grant]:
    """The grants of a file, by name.

    Raises:
        InputError: it cannot be read by us, or can by others, or names each faulty line.
    """
    try:
        text = path.read_text()
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise refuse(str(path), "", f"cannot be read: {error}") from None
    if mode & 0o022:
        raise refuse(str(path), "", "others could write grants into it: chmod go-w")
    grants: dict[str, Grant] = {}
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            grant = _grant(words, grants)
        except ValueError as error:
            problems.append(Problem(f"line {number}", str(error)))
        else:
            grants[grant.name] = grant
    if problems:
        raise InputError(str(path), *problems)
    return grants


def _grant(words: Sequence[str], others: Collection[str]) -> Grant:
    if len(words) not in (_WORDS, _NODE_WORDS):
        raise ValueError(
            "is not NAME ROLE EXPIRES HASH, and FABRIC SWITCH for an agent, FABRIC HOST for a host"
        )
    name, role, expires, digest, *rest = words
    if name in others:
        raise ValueError(f"{name!r} is there twice")
    if not _NAME.fullmatch(name) or role not in ROLES or not _HASH.fullmatch(digest):
        raise ValueError("has a name, a role or a hash that is not valid")
    if bool(rest) != (ROLES[role] in ONE_NODE):
        raise ValueError(
            "an agent's line ends in its fabric and its switch, a host's in its fabric and its"
            " name, any other in its hash"
        )
    moment = datetime.fromisoformat(expires)
    if moment.tzinfo is None:
        raise ValueError(f"{expires} has no zone: write it as 2027-01-01T00:00:00Z")
    return Grant(name, Caller(ROLES[role], "", *rest), moment.timestamp(), digest)


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode(errors="replace")).hexdigest()


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Changes with the file; None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino)
