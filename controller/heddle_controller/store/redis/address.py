"""Addresses of a Redis, as ``--store`` takes them.

    redis://[user:password@]host[:port][/db]            plain
    rediss://...                                        the same over TLS
    unix:///path/to/socket[?db=0]                       a socket of this machine
    redis+sentinel://[user:password@]host[:port],host[:port].../service[/db]
    rediss+sentinel://...                               the master that the sentinels name
    redis+cluster://[user:password@]host[:port],host[:port]...
    rediss+cluster://...                                the master of our slot, by any of these

``?name=...`` keeps several stores apart in one server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

SCHEMES = (
    "redis",
    "rediss",
    "unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PORTS = {"": 6379, "cluster": 6379, "sentinel": 26379}


@dataclass(frozen=True, slots=True)
class Files:
    """PEM files for ``rediss``. None means the system's authorities, or no client certificate."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address. ``str()`` gives it without user and password."""

    hosts: tuple[tuple[str, int], ...]
    """Host and port of the server, the sentinels or nodes of the cluster; empty for a socket."""
    path: str = ""
    """Path of a Unix socket, or empty."""
    service: str = ""
    """Name of the service that the sentinels watch; empty without sentinels."""
    cluster: bool = False
    """Whether the hosts are nodes of a cluster."""
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    name: str = "heddle"
    """Name of the store, which is part of every key."""

    @property
    def moves(self) -> bool:
        """Whether another server may take over from the present one."""
        return self.cluster or bool(self.service)

    def __str__(self) -> str:
        if self.path:
            return f"unix://{self.path}"
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        scheme = "rediss" if self.tls else "redis"
        kind, end = ("+sentinel", f"/{self.service}") if self.service else ("", "")
        return f"{scheme}{'+cluster' if self.cluster else kind}://{hosts}{end}"


def parse_address(url: str) -> Address:
    """Parse the URL of a store.

    Raises:
        ValueError: the URL has none of the forms. The text lists them and contains no password.
    """
    try:
        parts = urlsplit(url)
        query = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        raise ValueError(_forms()) from None
    if parts.scheme not in SCHEMES or set(query) - {"name", "db"}:
        raise ValueError(_forms())
    kind, _, way = parts.scheme.partition("+")
    sentinel, cluster = way == "sentinel", way == "cluster"
    user, at, where = parts.netloc.rpartition("@")
    name, _, password = user.partition(":") if at else ("", "", "")
    path = [unquote(part) for part in parts.path.split("/") if part]
    service = path.pop(0) if sentinel and path else ""
    database = query.get("db", [path[0] if path and kind != "unix" else "0"])[0]
    prefix = query.get("name", ["heddle"])[0]
    plain = database.isascii() and database.isdecimal()
    if not plain or not _NAME.fullmatch(prefix) or sentinel != bool(service):
        raise ValueError(_forms())
    if cluster and int(database):
        msg = f"database {database}: a cluster has none but 0; keep stores apart by ?name="
        raise ValueError(msg)
    address = Address(
        hosts=() if kind == "unix" else _hosts(where, _PORTS[way]),
        path=unquote(parts.path) if kind == "unix" else "",
        service=service,
        cluster=cluster,
        database=int(database),
        username=unquote(name) or None,
        password=unquote(password) or None,
        tls=kind == "rediss",
        name=prefix,
    )
    if not address.hosts and not address.path:
        raise ValueError(_forms())
    return address


def _hosts(where: str, port: int) -> tuple[tuple[str, int], ...]:
    found = []
    for one in where.split(","):
        split = urlsplit(f"//{one}")
        if not split.hostname:
            raise ValueError(_forms())
        found.append((split.hostname, split.port or port))
    return tuple(found)


def _forms() -> str:
    return (
        "not an address of a Redis: use redis://host:6379, rediss://host (TLS), unix:///path, "
        "redis+sentinel://host:26379,host:26379/service, or redis+cluster://host:6379,host:6379"
    )
