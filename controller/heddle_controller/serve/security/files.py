"""Files that say who may call, with one record per line: bearer tokens and revoked certificates.

Each call checks whether the files have changed. Changes then also apply to open streams (see
``OpenStreams``).

A token is for clients that cannot have a certificate. It is ``heddle.NAME.SECRET`` with 32 random
bytes as the secret. The controller's file has only the SHA-256 of the whole token. A slow hash is
not needed for a secret that cannot be guessed:

    # name    role       expires                hash              (agents: fabric, switch;
                                                                           hosts: fabric, host)
    slurm     scheduler  2027-01-01T00:00:00Z   9f86d081884c7d65…

A token becomes invalid as soon as its line is removed. A comparison takes the same time for every
presented token. Over plain text a token is accepted only from this host, because elsewhere it
could have been read on the way.

Revoked certificates are in a file of our own format, because gRPC reads no CRL. A line has a number
as openssl prints it (here followed by the command that prints it):

    serial  3F:A0:11:9C                          openssl x509 -noout -serial
    sha256  AB:CD:EF:...                         openssl x509 -noout -fingerprint -sha256

A serial number is that of the one authority whose clients may connect. If the file can no longer be
read or has malformed lines, all certificates that were revoked before stay revoked, and the valid
lines are added.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import structlog

from heddle_controller.model.errors import InputError, Problem, refuse
from heddle_controller.serve.security.caller import ONE_NODE, ROLES, Caller

log = structlog.stdlib.get_logger(__name__)

_Record = TypeVar("_Record")
FileStamp = tuple[int, int, int] | None


def stamp_of(path: Path | None) -> FileStamp:
    """Return a value that changes with the file; None if there is no file."""
    try:
        stat = path.stat() if path else None
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino) if stat else None


def records_of(
    path: Path, parse: Callable[[list[str]], _Record], *, writable: str = ""
) -> tuple[list[_Record], InputError | None]:
    """Return the records of a file, and an error about lines or the file; None if there is none.

    Args:
        path: The file; "#" begins a comment.
        parse: Makes a record of the words of a line; raises ``ValueError`` to say what is wrong.
        writable: Why others must not be able to write the file; empty if they may.
    """
    try:
        text, mode = path.read_text(), path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        return [], refuse(str(path), "", f"cannot be read: {error}")
    if writable and mode & 0o022:
        return [], refuse(str(path), "", f"{writable}: chmod go-w")
    found, problems = [], []
    for number, line in enumerate(text.splitlines(), 1):
        if words := line.partition("#")[0].split():
            try:
                found.append(parse(words))
            except ValueError as error:
                problems.append(Problem(f"line {number}", str(error)))
    return found, InputError(str(path), *problems) if problems else None


_PREFIX = "heddle"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HASH = re.compile(r"[0-9a-f]{64}")
_TOKEN = re.compile(rf"{_PREFIX}\.([A-Za-z0-9_-]{{1,64}})\.([A-Za-z0-9_-]{{43}})")
_WORDS = 4
_NODE_WORDS = 6
_NOTHING = "0" * 64


@dataclass(frozen=True, slots=True)
class Grant:
    """One line of the file with tokens."""

    name: str
    caller: Caller
    expires: float
    """Unix seconds."""
    hash: str
    """SHA-256 of the token in hexadecimal digits."""

    def line(self) -> str:
        """Return the line for the file."""
        until = datetime.fromtimestamp(self.expires, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        of = self.caller
        words = (self.name, of.role, until, self.hash, of.fabric, of.speaks_for)
        return " ".join(filter(None, words))


def new_token(caller: Caller, name: str, expires: float) -> tuple[str, Grant]:
    """Return a new token, which is kept nowhere, and the grant for the file.

    Raises:
        ValueError: the name cannot be part of a token.
    """
    if not _NAME.fullmatch(name):
        msg = f"{name!r} is not a name for a token: use letters, digits, _ and -, at most 64"
        raise ValueError(msg)
    token = f"{_PREFIX}.{name}.{secrets.token_urlsafe(32)}"
    return token, Grant(name, caller, expires, _hash(token))


class FollowedFile:
    """A file that is read again when it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = stamp_of(path)

    def stamp(self) -> object:
        """Return a value that changes with the file."""
        return stamp_of(self._path)

    def _changed(self) -> bool:
        """Return whether the file has changed since the last call."""
        before, self._seen = self._seen, stamp_of(self._path)
        return self._seen != before


class TokenFile(FollowedFile):
    """The grants of one file."""

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        """Raises ``InputError`` for a file that cannot be used."""
        super().__init__(path)
        self._now = now
        self._grants = read_grants(path)

    def grants(self) -> Collection[Grant]:
        """Return the grants, those that have expired among them."""
        self._refresh()
        return self._grants.values()

    def caller(self, token: str) -> Caller | None:
        """Return the holder of a token; None if it is unknown or has expired."""
        self._refresh()
        found = _TOKEN.fullmatch(token)
        grant = self._grants.get(found[1]) if found else None
        known = hmac.compare_digest(_hash(token), grant.hash if grant else _NOTHING)
        if grant is None or not known or self._now() >= grant.expires:
            return None
        of = grant.caller
        return Caller(of.role, f"token {grant.name}", of.fabric, of.speaks_for)

    def _refresh(self) -> None:
        if not self._changed():
            return
        try:
            self._grants = read_grants(self._path)
        except InputError as error:
            # An unusable file must not leave tokens valid that it may revoke.
            self._grants = {}
            log.error("no token is taken until the file is put right", why=str(error))  # noqa: TRY400
        else:
            log.info("tokens read again", count=len(self._grants))


def read_grants(path: Path) -> dict[str, Grant]:
    """Return the grants of a file, by name.

    Raises:
        InputError: the file cannot be read, can be written by others, or has faulty lines; each of
            these is named.
    """
    grants: dict[str, Grant] = {}

    def take(words: Sequence[str]) -> None:
        grant = _grant(words, grants)
        grants[grant.name] = grant

    _, problem = records_of(path, take, writable="others could write grants into it")
    if problem is not None:
        raise problem
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


SERIAL, SHA256 = "serial", "sha256"
_HEX = re.compile(r"[0-9A-Fa-f]+")
_DIGEST = re.compile(r"[0-9a-f]{64}")

_KEPT = 8192
"""Certificates whose serial number and hash are kept, so that each call need not compute them."""


class Revoked(FollowedFile):
    """The revoked certificates of one file."""

    def __init__(self, path: Path) -> None:
        """Raises ``InputError`` for a file that cannot be used."""
        super().__init__(path)
        self._identities: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()
        """Result of ``_words`` for the certificates used last, by PEM."""
        self._listed, problem = _read(path)
        if problem is not None:
            raise problem

    def _refresh(self) -> None:
        if not self._changed():
            return
        listed, problem = _read(self._path)
        if problem is None:
            self._listed = listed
            log.info("revoked certificates read again", certificates=len(listed))
        else:
            self._listed |= listed
            log.error(
                "certificates revoked before stay revoked until the file is put right",
                why=str(problem),
            )

    def names(self, pem: bytes) -> bool:
        """Return whether a certificate is revoked, or cannot be read while any are revoked."""
        self._refresh()
        if not self._listed:
            return False
        words = self._words(pem)
        return any(word in self._listed for word in words) or not words

    def _words(self, pem: bytes) -> tuple[str, ...]:
        known = self._identities.pop(pem, None)
        self._identities[pem] = found = _words(pem) if known is None else known
        if len(self._identities) > _KEPT:
            self._identities.popitem(last=False)
        return found


def _read(path: Path) -> tuple[frozenset[str], InputError | None]:
    """Return what a file lists, in the form of ``_words``, and an error about the rest of it."""
    listed, problem = records_of(path, _word, writable="others could write in it")
    return frozenset(listed), problem


def _word(words: list[str]) -> str:
    """Return a line in the form of ``_words``. Raises ``ValueError`` for a malformed line."""
    kind, digits = words[0], words[1].replace(":", "") if len(words) > 1 else ""
    if kind == SERIAL and _HEX.fullmatch(digits):
        return f"{SERIAL} {int(digits, 16):x}"
    if kind == SHA256 and _DIGEST.fullmatch(digits.lower()):
        return f"{SHA256} {digits.lower()}"
    raise ValueError("is not serial NUMBER or sha256 FINGERPRINT, in hexadecimal digits")


def _words(pem: bytes) -> tuple[str, ...]:
    """Return the words by which a file may list a certificate; none if it cannot be read."""
    from cryptography import x509  # noqa: PLC0415 - takes time, and only lists need it
    from cryptography.hazmat.primitives.hashes import SHA256 as SHA  # noqa: PLC0415

    try:
        certificate = x509.load_pem_x509_certificate(pem)
    except ValueError:
        return ()
    return (
        f"{SERIAL} {certificate.serial_number:x}",
        f"{SHA256} {certificate.fingerprint(SHA()).hex()}",
    )
