"""Port states from SONiC's own databases.

orchagent writes the chip's view of a port to APPL_DB (``oper_status`` of ``PORT_TABLE``) before it
sets the carrier of the kernel's interface. teamsyncd does the same for a portchannel
(``LAG_TABLE``). ``admin_status`` there is what an operator has asked for. Redis announces each
change by keyspace notifications, which SONiC enables. All ports are also read from time to time, in
case an announcement was missed.

While Redis is away, the last known states remain, and the kernel's carriers still count. This needs
the extra ``heddle-agent[sonic]``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import redis.asyncio
import structlog
from redis.exceptions import RedisError

from heddle_agent.fib.sonic import schema
from heddle_agent.stopping import asked_to_end

_log = structlog.get_logger()

_LOOK_SECONDS = 1.0
"""Interval at which all ports are read, even without an announcement."""
_ANSWER_SECONDS = 2.0
"""A Redis that does not answer within this time counts as away."""
_AGAIN_SECONDS = 0.5
"""Time until a Redis that is away is tried again."""

Told = Callable[[str, bool], None]


class SonicPortReports:
    """Port reports from the Redis that listens on a socket of this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._away = False

    async def watch(self, interfaces: Sequence[str], told: Told) -> None:
        """Implement ``PortReports.watch``."""
        while not asked_to_end():
            try:
                async with self._database() as database:
                    await self._follow(database, interfaces, told)
            except (RedisError, OSError) as error:
                if not self._away:
                    _log.warning("port states not read: Redis is away", why=str(error))
                self._away = True
            await asyncio.sleep(_AGAIN_SECONDS)

    def _database(self) -> redis.asyncio.Redis:
        return redis.asyncio.Redis(
            unix_socket_path=str(self._path),
            db=schema.APPL_DB,
            decode_responses=True,
            socket_timeout=_ANSWER_SECONDS,
        )

    async def _follow(
        self, database: redis.asyncio.Redis, interfaces: Sequence[str], told: Told
    ) -> None:
        channels = {schema.channel_of(name): name for name in interfaces}
        async with database.pubsub(ignore_subscribe_messages=True) as heard:
            await heard.subscribe(*channels)
            read, clock = -_LOOK_SECONDS, asyncio.get_running_loop().time
            while not asked_to_end():
                changed = set[str]()
                if clock() >= read + _LOOK_SECONDS:
                    changed, read = set(interfaces), clock()
                elif message := await heard.get_message(timeout=_LOOK_SECONDS):
                    while message is not None:  # read all that waits: ports often fail together
                        changed.add(channels[message["channel"]])
                        message = await heard.get_message(timeout=0.0)
                if changed:
                    await _read(database, sorted(changed), told)
                self._away = False


async def _read(database: redis.asyncio.Redis, interfaces: Sequence[str], told: Told) -> None:
    async with database.pipeline(transaction=False) as pipe:
        for name in interfaces:
            pipe.hmget(schema.port_key(name), schema.PORT_STATES)
        states = await pipe.execute()
    for name, fields in zip(interfaces, states, strict=True):
        told(name, all(field in {None, schema.UP} for field in fields))
