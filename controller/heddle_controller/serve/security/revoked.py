"""Certificates that were taken back before their time: a file of our own, as gRPC reads no CRL.

One line a certificate, the form in which openssl prints it; what follows is a comment:

    serial  3F:A0:11:9C                          openssl x509 -noout -serial
    sha256  AB:CD:EF:...                         openssl x509 -noout -fingerprint -sha256

A serial is that of the one authority whose clients are let in. The file is looked at with each
call, and what it says counts from then on, for streams under way too (``OpenStreams``). A file that
was there and cannot be read any more, or has lines that say nothing, takes nothing back:
what was revoked stays so, beside what can be read.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from collections import OrderedDict
from pathlib import Path

import structlog

from heddle_controller.model.errors import InputError, Problem, refuse

log = structlog.stdlib.get_logger(__name__)

SERIAL, SHA256 = "serial", "sha256"
_HEX = re.compile(r"[0-9A-Fa-f]+")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SEQUENCE, _INTEGER, _VERSION = 0x30, 0x02, 0xA0
_LONG = 0x80

_KEPT = 8192
"""Certificates whose identities are kept, so that a call need not read them anew."""

_Stamp = tuple[int, int, int]


class Revoked:
    """The certificates of one file."""

    def __init__(self, path: Path) -> None:
        """Raises ``InputError`` for a file that cannot be used."""
        self._path = path
        self._identities: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()
        """What the newest certificates may be listed by."""
        self._seen = _stamp(path)
        self._listed, problem = _read(path)
        if problem is not None:
            raise problem

    def stamp(self) -> object:
        """Changes with the file."""
        return _stamp(self._path)

    def _refresh(self) -> None:
        stamp = _stamp(self._path)
        if stamp == self._seen:
            return
        self._seen = stamp
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
        """Whether a certificate is among them; one that cannot be read counts as one of them."""
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
    """What a file lists, as ``_words`` has it, and what is wrong with the rest of it."""
    try:
        text, mode = path.read_text(), path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        return frozenset(), refuse(str(path), "", f"cannot be read: {error}")
    if mode & 0o022:
        return frozenset(), refuse(str(path), "", "others could write in it: chmod go-w")
    listed, problems = set(), []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        word = _word(words)
        if word is None:
            reason = "is not serial NUMBER or sha256 FINGERPRINT, in hexadecimal digits"
            problems.append(Problem(f"line {number}", reason))
        else:
            listed.add(word)
    return frozenset(listed), InputError(str(path), *problems) if problems else None


def _word(words: list[str]) -> str | None:
    """One line in the form of ``_words``; None if it says nothing."""
    kind, digits = words[0], words[1].replace(":", "") if len(words) > 1 else ""
    if kind == SERIAL and _HEX.fullmatch(digits):
        return f"{SERIAL} {int(digits, 16):x}"
    if kind == SHA256 and _DIGEST.fullmatch(digits.lower()):
        return f"{SHA256} {digits.lower()}"
    return None


def _words(pem: bytes) -> tuple[str, ...]:
    """The words by which a certificate may be listed; nothing if it is none."""
    try:
        der = ssl.PEM_cert_to_DER_cert(pem.decode("ascii"))
        return f"{SERIAL} {_serial(der):x}", f"{SHA256} {hashlib.sha256(der).hexdigest()}"
    except (ValueError, IndexError):
        return ()


def _serial(der: bytes) -> int:
    """The serial number: the first integer of the first part, after its version."""
    at, _ = _opened(der, 0, _SEQUENCE)
    at, _ = _opened(der, at, _SEQUENCE)
    if der[at] == _VERSION:
        at, length = _opened(der, at, _VERSION)
        at += length
    at, length = _opened(der, at, _INTEGER)
    return int.from_bytes(der[at : at + length], "big", signed=True)


def _opened(der: bytes, at: int, kind: int) -> tuple[int, int]:
    """Where the content of an element begins, and its length."""
    if der[at] != kind:
        raise ValueError(f"{der[at]:#x} where {kind:#x} should be")
    length, at = der[at + 1], at + 2
    if length & _LONG:
        count = length ^ _LONG
        length, at = int.from_bytes(der[at : at + count], "big"), at + count
    return at, length


def _stamp(path: Path) -> _Stamp | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino)
