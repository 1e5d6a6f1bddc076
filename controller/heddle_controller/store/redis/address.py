"""Where a Redis is: the forms of ``--store`` that name one, and the clients for each.

    redis://[user:password@]host[:port][/db]            plain
    rediss://...                                        the same over TLS
    unix:///path/to/socket[?db=0]                       a socket of this machine
    redis+sentinel://[user:password@]host[:port],host[:port].../service[/db]
    rediss+sentinel://...                               whoever the sentinels say is the master

``?name=...`` keeps several controllers' stores apart in one server. Retries are ours
(``link``), so the library's are off: a call that failed has to be seen to have failed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_PORTS = {"redis": 6379, "sentinel": 26379}


@dataclass(frozen=True, slots=True)
class Files:
    """PEM files for ``rediss``; None: the system's authorities, and no certificate of our own."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address; ``str`` tells it without the password."""

    hosts: tuple[tuple[str, int], ...]
    """Of the server, or of the sentinels; none for a socket."""
    path: str = ""
    """Of a socket."""
    service: str = ""
    """That the sentinels watch; empty without sentinels."""
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    name: str = "heddle"
    """Part of every key."""

    def __str__(self) -> str:
        if self.path:
            return f"unix://{self.path}"
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        scheme = "rediss" if self.tls else "redis"
        kind, end = ("+sentinel", f"/{self.service}") if self.service else ("", "")
        return f"{scheme}{kind}://{hosts}{end}"


def parse_address(url: str) -> Address:
    """The address in a URL.

    Raises:
        ValueError: it is none of the forms; the text says which are, and has no password in it.
    """
    try:
        parts = urlsplit(url)
        query = parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        raise ValueError(_forms()) from None
    if parts.scheme not in SCHEMES or set(query) - {"name", "db"}:
        raise ValueError(_forms())
    kind, _, sentinel = parts.scheme.partition("+")
    user, at, where = parts.netloc.rpartition("@")
    name, _, password = user.partition(":") if at else ("", "", "")
    path = [unquote(part) for part in parts.path.split("/") if part]
    service = path.pop(0) if sentinel and path else ""
    database = query.get("db", [path[0] if path and kind != "unix" else "0"])[0]
    prefix = query.get("name", ["heddle"])[0]
    if not database.isdecimal() or not _NAME.fullmatch(prefix) or bool(sentinel) != bool(service):
        raise ValueError(_forms())
    address = Address(
        hosts=() if kind == "unix" else _hosts(where, _PORTS[sentinel or "redis"]),
        path=unquote(parts.path) if kind == "unix" else "",
        service=service,
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
        "not an address of a Redis: use redis://host:6379, rediss://host (TLS), unix:///path, or "
        "redis+sentinel://host:26379,host:26379/service"
    )


async def find(address: Address, files: Files, timeout: float) -> Address:  # noqa: ASYNC109 - of each
    """The server itself: where there are sentinels, whoever they say is the master now.

    Raises:
        RedisError: no sentinel answers, or none knows of a master.
    """
    if not address.service:
        return address
    options = _options(address, files, timeout)
    del options["db"], options["username"], options["password"]  # those are the server's
    sentinel = Sentinel(list(address.hosts), sentinel_kwargs=options)  # type: ignore[no-untyped-call]
    try:
        master = await sentinel.discover_master(address.service)
    finally:
        for client in sentinel.sentinels:
            await client.aclose()
    return replace(address, hosts=(master,), service="")


def connect(address: Address, files: Files, timeout: float, block: float = 0.0) -> Redis:
    """A client; connections are made when they are first needed.

    Args:
        address: Where.
        files: For TLS.
        timeout: Seconds that a server may take to answer, or to be connected to.
        block: Seconds more for a client whose calls wait in the server.
    """
    options = _options(address, files, timeout, block)
    if address.path:
        return Redis(unix_socket_path=address.path, **options)
    if not address.service:
        host, port = address.hosts[0]
        return Redis(host=host, port=port, **options)
    shared = _options(address, files, timeout)
    del shared["db"], shared["username"], shared["password"]
    sentinel = Sentinel(list(address.hosts), sentinel_kwargs=shared)  # type: ignore[no-untyped-call]
    client: Redis = sentinel.master_for(address.service, **options)
    return client


def _options(address: Address, files: Files, timeout: float, block: float = 0.0) -> dict[str, Any]:
    return {
        "db": address.database,
        "username": address.username,
        "password": address.password,
        "socket_timeout": timeout + block,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "client_name": "heddle-controller",
        **(_tls(files) if address.tls else {}),
    }


def _tls(files: Files) -> dict[str, Any]:
    paths = {"ssl_ca_certs": files.ca, "ssl_certfile": files.cert, "ssl_keyfile": files.key}
    given = {option: str(path) for option, path in paths.items() if path is not None}
    return {"ssl": True, "ssl_cert_reqs": "required", "ssl_check_hostname": True, **given}
