"""The server's TLS files, and the mapping of verified client certificates to callers.

A certificate gives its role by a URI among its alternative names:

    spiffe://heddle/operator/ann        spiffe://heddle/agent/f1/leaf0
    spiffe://heddle/scheduler/slurm     spiffe://heddle/reader/grafana
    spiffe://heddle/host/f1/node-17

Parts are percent-encoded if an id has characters that a URI may not have. The trust domain
("heddle") is a setting. A file with rules maps certificates that have no such URI. It has one rule
per line, and the first rule that fits counts:

    # field of the certificate   value       role       (agents: fabric, switch;
                                                          hosts: fabric, host)
    cn                           slurm-*     scheduler
    ou                           netops      operator
    dns                          leaf0.dc1   agent      f1  leaf0

A certificate without a role is verified, but its holder may do nothing. A certificate with two URIs
of the trust domain is refused, as SPIFFE requires.

The server's certificate, key and authorities are read again when the files change, which is checked
at every handshake. New files that do not belong together, because only one of them is written yet,
change nothing: the old ones are used until both are there. Open connections keep the certificate
with which they began, at most until they reach the maximum age of a connection.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import unquote

import grpc
import structlog

from heddle_controller.model.errors import InputError, refuse
from heddle_controller.serve import errors
from heddle_controller.serve.security.caller import ONE_NODE, ROLES, Caller, Role
from heddle_controller.serve.security.files import FileStamp, records_of, stamp_of
from heddle_controller.serve.security.validity import validity_of

_Made = TypeVar("_Made")
FIELDS = ("uri", "dns", "email", "cn", "ou")
_NODE_PARTS = 2
_RULE_WORDS = 3
_ATTRIBUTE = re.compile(r"([A-Za-z][A-Za-z0-9.-]*)=((?:[^\\,+]|\\.)*)[,+]?", re.DOTALL)
_ESCAPE = re.compile(r"((?:\\[0-9A-Fa-f]{2})+)|\\(.)", re.DOTALL)

TWO_ROLES = errors.unauthenticated(
    "TWO_ROLES", "the certificate names two roles: ask for one that names one"
)
Names = Mapping[str, Sequence[str]]
"""The names in a certificate, by one of ``FIELDS``."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of the file."""

    field: str
    """One of ``FIELDS``."""
    pattern: str
    """A pattern of names, with ``*`` and ``?`` as for file names."""
    caller: Caller

    def fits(self, names: Names) -> str | None:
        """Return the first name that matches the rule; None if no name matches."""
        for name in names.get(self.field, ()):
            if fnmatchcase(name, self.pattern):
                return name
        return None


@dataclass(frozen=True, slots=True)
class Mapper:
    """Maps the names in a certificate to a caller."""

    trust_domain: str = "heddle"
    rules: tuple[Rule, ...] = ()

    def caller(self, names: Names) -> Caller:
        """Return the caller with these names; without a role, ``NOBODY`` under the first name.

        Raises:
            Refusal: there are two URIs of the trust domain, so the role is ambiguous.
        """
        prefix = f"spiffe://{self.trust_domain}/"
        if len({uri for uri in names.get("uri", ()) if uri.startswith(prefix)}) > 1:
            raise TWO_ROLES
        for uri in names.get("uri", ()):
            found = self._of_uri(uri)
            if found is not None:
                return found
        for rule in self.rules:
            name = rule.fits(names)
            if name is not None:
                made = rule.caller
                return Caller(made.role, f"{rule.field} {name}", made.fabric, made.speaks_for)
        return Caller(Role.NOBODY, next((n for field in FIELDS for n in names.get(field, ())), ""))

    def _of_uri(self, uri: str) -> Caller | None:
        prefix = f"spiffe://{self.trust_domain}/"
        if not uri.startswith(prefix):
            return None
        role, *parts = (unquote(part) for part in uri.removeprefix(prefix).split("/"))
        if role not in ROLES or not all(parts):
            return None
        if ROLES[role] not in ONE_NODE:
            return Caller(ROLES[role], uri) if len(parts) == 1 else None
        return Caller(ROLES[role], uri, *parts) if len(parts) == _NODE_PARTS else None


def read_rules(path: Path) -> tuple[Rule, ...]:
    """Return the rules of a file.

    Raises:
        InputError: the file cannot be read, or has lines that are no rules; each is named.
    """
    rules, problem = records_of(path, _rule)
    if problem is not None:
        raise problem
    return tuple(rules)


def _rule(words: Sequence[str]) -> Rule:
    if len(words) < _RULE_WORDS or words[0] not in FIELDS or words[2] not in ROLES:
        msg = f"is not FIELD VALUE ROLE, with FIELD of {', '.join(FIELDS)}, ROLE of {_ROLE_WORDS}"
        raise ValueError(msg)
    field, pattern, role, *rest = words
    if len(rest) != (_NODE_PARTS if ROLES[role] in ONE_NODE else 0):
        msg = (
            "an agent's line ends in its fabric and its switch, a host's in its fabric and its"
            " name, any other in its role"
        )
        raise ValueError(msg)
    return Rule(field, pattern, Caller(ROLES[role], "", *rest))


_ROLE_WORDS = ", ".join(ROLES)


def names_of(context: Mapping[str, Iterable[bytes]]) -> Names:
    """Return the names in the peer's certificate by field, from gRPC's auth context."""
    names = {
        field: [_text(value) for value in context.get(key, ())]
        for field, key in (
            ("uri", "peer_uri"),
            ("dns", "peer_dns"),
            ("email", "peer_email"),
            ("cn", "x509_common_name"),
        )
    }
    subjects = [_text(value) for value in context.get("x509_subject", ())]
    names["ou"] = [value for subject in subjects for value in _units(subject)]
    return names


def _units(subject: str) -> list[str]:
    """Return the organisational units of a subject written as in RFC 2253, and unescape them."""
    return [
        _ESCAPE.sub(_unescaped, value)
        for name, value in _ATTRIBUTE.findall(subject)
        if name == "OU"
    ]


def _unescaped(found: re.Match[str]) -> str:
    if found[1]:
        return bytes.fromhex(found[1].replace("\\", "")).decode(errors="replace")
    return found[2]


def _text(value: bytes) -> str:
    return value.decode(errors="replace")


log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files of a server. With ``client_ca``, only clients that it certified may connect."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def stamp(self) -> tuple[FileStamp, ...]:
        """Return a value that changes with the files."""
        return tuple(stamp_of(path) for path in (self.cert, self.key, self.client_ca))


def credentials(tls: Tls) -> grpc.ServerCredentials:
    """Return gRPC credentials that follow changes of the files.

    Raises:
        InputError: the files cannot be used now.
    """
    keys = FollowedTls(tls, configuration)
    newer: Any = keys.newer  # may also return None, which the library's type lacks
    return grpc.dynamic_ssl_server_credentials(
        keys.made, newer, require_client_authentication=tls.client_ca is not None
    )


class FollowedTls(Generic[_Made]):
    """What is made of TLS files, and made again when they change."""

    def __init__(self, tls: Tls, make: Callable[[Tls], _Made]) -> None:
        """``make`` raises ``InputError`` if the files cannot be used."""
        self._tls = tls
        self._make = make
        self._stamp = tls.stamp()
        self.made = make(tls)
        _check_validity(tls)

    def newer(self) -> _Made | None:
        """Return what changed files give; None if unchanged or if they are unusable."""
        stamp = self._tls.stamp()
        if stamp == self._stamp:
            return None
        try:
            self.made = self._make(self._tls)
        except InputError as error:
            log.warning("certificate not changed", why=str(error))
            return None
        self._stamp = stamp
        log.info("certificate read again", file=str(self._tls.cert))
        _check_validity(self._tls)
        return self.made


def _check_validity(tls: Tls) -> None:
    """Log certificates that are not valid now: connections fail, mostly unseen by the server."""
    now = time.time()
    for path in (tls.cert, tls.client_ca):
        try:
            valid = validity_of(path.read_bytes()) if path is not None else None
        except OSError:  # removed since it was read
            continue
        if valid is not None and not valid.begins <= now < valid.ends:
            ended = valid.ends <= now
            moment = datetime.fromtimestamp(valid.ends if ended else valid.begins, UTC)
            event = "certificate has ended" if ended else "certificate is not valid yet"
            cure = "replace the file: it is read again without a restart"
            cure = cure if ended else "check this machine's clock"
            log.error(event, file=str(path), at=moment.isoformat(), cure=cure)


def server_context(tls: Tls) -> ssl.SSLContext:
    """Return a context for Python's own TLS, for HTTP/2; it does not request a client certificate.

    Raises:
        InputError: the files cannot be used; names the files and the reason.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2"])
    try:
        context.load_cert_chain(tls.cert, tls.key, password=lambda: "")
        if tls.client_ca is not None:
            context.load_verify_locations(tls.client_ca)
    except OSError as error:
        raise _unusable(tls, error) from None
    return context


def configuration(tls: Tls) -> grpc.ServerCertificateConfiguration:
    """Return a configuration for gRPC; checked here, because gRPC fails only at a handshake.

    Raises:
        InputError: the files cannot be used; names the files and the reason.
    """
    server_context(tls)
    try:
        authorities = tls.client_ca.read_bytes() if tls.client_ca else None
        pair = (tls.key.read_bytes(), tls.cert.read_bytes())
    except OSError as error:
        raise _unusable(tls, error) from None
    return grpc.ssl_server_certificate_configuration([pair], authorities)


def _unusable(tls: Tls, error: OSError) -> InputError:
    files = ", ".join(str(path) for path in (tls.cert, tls.key, tls.client_ca) if path)
    reason = f"cannot be used ({error.strerror or error}): give PEM files that belong together"
    return refuse("settings", files, reason)
