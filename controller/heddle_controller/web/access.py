"""Access to the web page: who asks, and whether they may look, by the same rules as in the API.

A browser shows a certificate, or a token in a cookie that scripts cannot read and that requests
from other sites do not carry. Programs send ``Authorization: Bearer`` as they do to the API. Each
answer has a content security policy that lets the page load nothing but its own files.

This module also serves reports of drills and campaigns, which are pages that the emulator wrote
into a folder. They have a policy of their own, under which a page can reach nothing, not even this
controller.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from starlette.requests import HTTPConnection

from heddle_controller.serve import errors
from heddle_controller.serve.interceptors.auth import (
    Admission,
    Budget,
    Shown,
    check_role,
    is_loopback,
)
from heddle_controller.serve.security.caller import Caller, Role
from heddle_controller.serve.security.certificates import FIELDS, Names

COOKIE = "heddle_token"
CERTIFICATE = "heddle_certificate"
"""Key of the client's certificate in the state of each request."""
HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
FOREIGN_HOST = errors.denied(
    "FOREIGN_HOST",
    "plain text is served under the names localhost, 127.0.0.1 and [::1] only: a page of another "
    "site could have sent this",
)
FOREIGN_SITE = errors.denied("FOREIGN_SITE", "another site's page sent this")


@dataclass(frozen=True, slots=True)
class PeerCertificate:
    """The client certificate of a connection."""

    names: Names
    """Its names, by field."""
    pem: bytes


def peer_certificate(connection: ssl.SSLObject | None) -> PeerCertificate | None:
    """Return the verified certificate that a client showed; None without one."""
    der = connection.getpeercert(binary_form=True) if connection else None
    told: Mapping[str, Any] | None = connection.getpeercert() if connection and der else None
    if der is None or not told:
        return None
    names: dict[str, list[str]] = {field: [] for field in FIELDS}
    for kind, value in told.get("subjectAltName", ()):
        if kind.lower() in names:
            names[kind.lower()].append(value)
    fields = {"commonName": "cn", "organizationalUnitName": "ou"}
    for part in told.get("subject", ()):
        for kind, value in part:
            if kind in fields:
                names[fields[kind]].append(value)
    return PeerCertificate(names, ssl.DER_cert_to_PEM_cert(der).encode())


class Access:
    """Identifies callers and checks what they may do, as the API does."""

    def __init__(self, admission: Admission, budget: Budget) -> None:
        self._admission = admission
        self._budget = budget

    def caller(self, asked: HTTPConnection) -> Caller:
        """Return who sent a request.

        Raises:
            Refusal: as ``Admission.judge``; also for a plain-text request on this host under
                another host name, because a page of another site could have sent it.
        """
        host = asked.client.host if asked.client else ""
        secure = asked.url.scheme == "https"
        own = not secure and is_loopback(host)
        certificate: PeerCertificate | None = asked.scope["state"].get(CERTIFICATE)
        caller = self._admission.judge(
            Shown(
                host,
                secure=secure,
                own=own,
                names=certificate.names if certificate else {},
                certificates=(certificate.pem,) if certificate else (),
                token=_token(asked),
            )
        )
        if own and caller.role is Role.LOCAL and not is_loopback(_named_host(asked)):
            raise FOREIGN_HOST
        return caller

    def check(self, asked: HTTPConnection, call: str) -> Caller:
        """Return who sent a request, if they may call this method (``Service/Method``) now.

        Raises:
            Refusal: they may not, have called too often, or another site's page sent the request.
        """
        if asked.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
            raise FOREIGN_SITE
        caller = self.caller(asked)
        service, _, method = call.partition("/")
        check_role(caller, f"heddle.v1.{service}", method)
        if (wait := self._budget.call(str(caller))) > 0:
            raise errors.Refusal(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMIT", "too many calls: slow down",
                retry_seconds=wait,
            )  # fmt: skip
        return caller


def _token(asked: HTTPConnection) -> str | None:
    scheme, _, token = asked.headers.get("authorization", "").partition(" ")
    if scheme:
        return token.strip() if scheme.lower() == "bearer" else ""
    return asked.cookies.get(COOKIE)


def _named_host(asked: HTTPConnection) -> str:
    name = asked.headers.get("host", "")
    bare = name.rpartition(":")[0] if name.rpartition(":")[2].isdigit() else name
    return bare.removeprefix("[").removesuffix("]")


_MOST_TOLD = 1000
"""Most reports that are listed."""
_MOST_BYTES = 64 << 20
"""Most bytes of a report that is shown."""
REPORT_HEADERS: Mapping[str, str] = {
    **HEADERS,
    "cache-control": "private, no-cache",
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}
"""Headers of a report, which has its styles and script inline. The page's own policy allows only
the script with one hash."""


def reports_in(folder: Path) -> list[dict[str, str | float]]:
    """Return name and time (Unix seconds) of each report, newest first; none without a folder."""
    found: list[tuple[float, str]] = []
    for path in folder.glob("*.html"):
        with suppress(OSError):  # it may be deleted meanwhile
            found.append((path.stat().st_mtime, path.name))
    found.sort(key=lambda one: (-one[0], one[1]))
    return [{"name": name, "time": time} for time, name in found[:_MOST_TOLD]]


def report_page(folder: Path | None, name: str) -> bytes:
    """Return the content of a report; ``folder`` is None if the operator named none.

    Raises:
        Refusal: NOT_FOUND if there is no such report, or it is too large.
    """
    if folder is None:
        raise errors.not_found("NO_REPORT", "this controller was started without --web-reports")
    path = folder / name
    if not name.endswith(".html") or name.startswith(".") or path.parent != folder:
        raise errors.not_found("NO_REPORT", "reports are pages: see /reports/index.html")
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise errors.not_found("NO_REPORT", f"the report is larger than {_MOST_BYTES:,} bytes")
        return path.read_bytes()
    except (OSError, ValueError):  # ValueError: a name with a NUL
        cure = "see /api/reports, or write one with heddle-emulator drill FILE --report FOLDER"
        raise errors.not_found("NO_REPORT", f"there is no such report: {cure}") from None
