"""Where a Redis is: the forms of ``--store`` that name one, and the clients for each.

    redis://[user:password@]host[:port][/db]            plain
    rediss://...                                        the same over TLS
    unix:///path/to/socket[?db=0]                       a socket of this machine
    redis+sentinel://[user:password@]host[:port],host[:port].../service[/db]
    rediss+sentinel://...                               whoever the sentinels say is the master
    redis+cluster://[user:password@]host[:port],host[:port]...
    rediss+cluster://...                                the master of our slot, by any of these

``?name=...`` keeps several controllers' stores apart in one server. Retries are ours
(``link``), so the library's are off: a call that failed has to be seen to have failed.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import ClusterDownError, RedisError

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
    """PEM files for ``rediss``; None: the system's authorities, and no certificate of our own."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address; ``str`` tells it without the password."""

    hosts: tuple[tuple[str, int], ...]
    """Of the server, of the sentinels, or of nodes of the cluster; none for a socket."""
    path: str = ""
    """Of a socket."""
    service: str = ""
    """That the sentinels watch; empty without sentinels."""
    cluster: bool = False
    """Whether the hosts are nodes of a cluster."""
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    name: str = "heddle"
    """Part of every key."""

    @property
    def moves(self) -> bool:
        """Whether another server may take the place of the one that it is now."""
        return self.cluster or bool(self.service)

    def __str__(self) -> str:
        if self.path:
            return f"unix://{self.path}"
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        scheme = "rediss" if self.tls else "redis"
        kind, end = ("+sentinel", f"/{self.service}") if self.service else ("", "")
        return f"{scheme}{'+cluster' if self.cluster else kind}://{hosts}{end}"


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


async def find(address: Address, files: Files, timeout: float) -> Address:  # noqa: ASYNC109 - of each
    """The server itself: whoever the sentinels, or the nodes of the cluster, say it is now.

    Raises:
        RedisError: nobody of them answers, or none knows.
    """
    if address.cluster:
        return await _find_in_cluster(address, files, timeout)
    if not address.service:
        return address
    options = _options(address, files, timeout)
    del options["db"], options["username"], options["password"]  # those are the server's
    sentinel = Sentinel(list(address.hosts), sentinel_kwargs=options)  # type: ignore[no-untyped-call]
    try:
        master = await sentinel.discover_master(address.service)
    except MasterNotFoundError as error:
        raise MasterNotFoundError(_nobody_knows(address, str(error))) from None
    finally:
        for client in sentinel.sentinels:
            await client.aclose()
    return replace(address, hosts=(master,), service="")


def _nobody_knows(address: Address, told: str) -> str:
    """What the library tells of the sentinels, in a line without its own representations."""
    hosts = ",".join(f"{host}:{port}" for host, port in address.hosts)
    trouble = told.rpartition("> - ")[2] if "> - " in told else "none of them knows it"
    return f"no master {address.service!r} by the sentinels {hosts}: {trouble}"


async def _find_in_cluster(address: Address, files: Files, timeout: float) -> Address:  # noqa: ASYNC109 - of each
    """The master of the slot that all our keys are in, by the first node that knows."""
    slot, trouble = key_slot(f"{{{address.name}}}".encode()), ""
    for host, port in random.sample(address.hosts, len(address.hosts)):  # one may be long silent
        node = replace(address, hosts=((host, port),), cluster=False)
        try:
            async with connect(node, files, timeout) as client:
                ranges: Any = await client.execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
        except (RedisError, OSError) as error:
            trouble = str(error)
            continue
        for first, last, (at, at_port, *_), *_replicas in ranges:
            if first <= slot <= last:
                # A node that does not know by which name it is reached leaves that out.
                return replace(node, hosts=((at.decode() if at else host, at_port),))
        trouble = f"{host}:{port} knows no node that has slot {slot}"
    raise ClusterDownError(trouble)


def connect(address: Address, files: Files, timeout: float, block: float = 0.0) -> Redis:
    """A client; connections are made when they are first needed.

    Args:
        address: Where: what ``find`` found.
        files: For TLS.
        timeout: Seconds that a server may take to answer, or to be connected to.
        block: Seconds more for a client whose calls wait in the server.
    """
    options = _options(address, files, timeout, block)
    if address.path:
        return Redis(unix_socket_path=address.path, **options)
    host, port = address.hosts[0]
    return Redis(host=host, port=port, **options)


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
