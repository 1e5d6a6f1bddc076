"""HTTP requests to the web page, as a program makes them."""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

SECONDS = 120.0


@dataclass(frozen=True)
class Answer:
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def fetch(
    url: str,
    *,
    headers: dict[str, str] | None = None,
    data: bytes | None = None,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    """Make one request on a new connection; a POST if there is data to send."""
    told = connect(url, headers=headers, data=data, tls=tls)
    with told:
        found = {name.lower(): value for name, value in told.getheaders()}
        return Answer(told.status, found, told.read())


def connect(
    url: str,
    *,
    headers: dict[str, str] | None = None,
    data: bytes | None = None,
    tls: ssl.SSLContext | None = None,
) -> http.client.HTTPResponse:
    """Return an answer whose body is not read yet, for example of a stream."""
    parts = urlsplit(url)
    assert parts.hostname
    connection = (
        http.client.HTTPSConnection(parts.hostname, parts.port, timeout=SECONDS, context=tls)
        if parts.scheme == "https"
        else http.client.HTTPConnection(parts.hostname, parts.port, timeout=SECONDS)
    )
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    told = {"connection": "close", **(headers or {})}  # only the answer holds the socket
    connection.request("GET" if data is None else "POST", path, data, told)
    return connection.getresponse()


def event(stream: http.client.HTTPResponse) -> dict[str, str]:
    """Return the next server-sent event; empty if the stream is over."""
    found: dict[str, str] = {}
    while line := stream.readline().decode().rstrip("\n"):
        name, _, value = line.partition(": ")
        found[name] = value
    return found
