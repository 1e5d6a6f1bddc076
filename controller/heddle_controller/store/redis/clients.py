"""Clients for each form of address, once it is known which server that is now.

Retries are ours (``link``), so the library's are off: a call that failed has to be seen to have
failed.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from redis.asyncio import ConnectionPool, Redis, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import ClusterDownError, RedisError

from heddle_controller.store.redis.address import Address, Files


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
        # Redis(unix_socket_path=...) would not pass on the time that connecting may take.
        return Redis.from_pool(
            ConnectionPool(UnixDomainSocketConnection, path=address.path, **options)
        )
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
