"""The API of a cluster: calls with clear errors, and mirrors of what it holds."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, cast

import httpx2
import msgspec
from lightkube.core.async_client import AsyncClient
from lightkube.core.exceptions import ApiError
from lightkube.core.resource import api_info
from lightkube.generic_resource import GenericNamespacedResource
from lightkube.types import PatchType

from heddle.text import clean
from heddle_kubernetes.objects import Kind, Object, key_of, part, text

PAUSE = 0.1
"""Seconds to pause after the first failure; doubles up to ``LONGEST_PAUSE``."""
LONGEST_PAUSE = 5.0
WATCH_SECONDS = 60
"""How long the server keeps a watch open."""
GRACE = 30.0
"""Seconds by which a watch may end late; after that the connection counts as lost."""
WATCH_PACE = 1.0
"""Least seconds between the beginnings of two watches of a kind. A server, or a proxy before it,
may end each watch at once."""
PAGE = 500
"""Objects in a page of a list."""
MOST_CALLS = 64
"""Calls under way at the same time, besides watches. The others wait here for their turn: in the
pool of connections they would time out, and each would make all others dearer."""
CONFLICT, MISSING, FORBIDDEN, GONE = 409, 404, 403, 410
NOBODY, TOO_MANY = 0, 429
OVERLOADED = frozenset({NOBODY, TOO_MANY, 502, 503, 504})
"""Codes of failures that the next call would meet too."""

_log = logging.getLogger(__name__)


class ClusterError(Exception):
    """A call of the API failed; ``str()`` of it is one line."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code
        """HTTP status; 0 if nobody answered."""


class Attempts:
    """Pauses between attempts at something that fails: each is twice as long, up to a limit."""

    def __init__(self) -> None:
        self._pause, self._told = PAUSE, ""

    async def failed(self, error: ClusterError, what: str = "") -> None:
        """Pause, and log the error first, unless it was the last one too or is only ``GONE``."""
        if str(error) != self._told and error.code != GONE:
            _log.warning("%s%s; it is tried again and again", what, error)
        self._told = str(error)
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        await asyncio.sleep(pause)


def _error(error: httpx2.HTTPError, what: str) -> ClusterError:
    if isinstance(error, ApiError):
        code = error.status.code or 0
        return ClusterError(clean(f"{what}: {error.status.message or code}")[:500], code)
    if isinstance(error, httpx2.HTTPStatusError):
        code = error.response.status_code
        return ClusterError(f"{what}: the API server answered {code}", code)
    why = str(error) or type(error).__name__
    return ClusterError(clean(f"{what}: the API server is not reached ({why})")[:500])


def _asked(error: httpx2.HTTPError) -> float:
    """Return for how many seconds the server asks to be left alone, at most ``LONGEST_PAUSE``."""
    response = getattr(error, "response", None)
    told = "" if response is None else str(response.headers.get("retry-after", ""))
    return min(float(told), LONGEST_PAUSE) if told.isdecimal() else 0.0


@asynccontextmanager
async def _telling(what: str) -> AsyncIterator[None]:
    """Raise ``ClusterError`` for all that goes wrong with a call; ``what`` describes the call.

    If the server says after which time to try again, the call fails after that time.
    """
    try:
        yield
    except httpx2.HTTPError as error:
        await asyncio.sleep(_asked(error))
        raise _error(error, what) from None
    except (msgspec.MsgspecError, KeyError, ValueError) as error:
        message = f"{what}: the API server's answer is none ({type(error).__name__}: {error})"
        raise ClusterError(clean(message)[:500]) from None


def pace_watches(client: AsyncClient) -> None:
    """Let watches of a kind begin no more often than ``WATCH_PACE`` says.

    lightkube begins a watch again by itself, and at once, when the server has ended it.
    """
    watched: dict[str, float] = {}  # by path, when the last watch began

    async def paced(request: httpx2.Request) -> None:
        if "watch" not in request.url.params:
            return
        now, path = asyncio.get_running_loop().time(), request.url.path
        watched[path] = max(now, watched.get(path, -math.inf) + WATCH_PACE)
        await asyncio.sleep(watched[path] - now)

    inner: Any = client
    inner._client._client.event_hooks = {"request": [paced]}  # noqa: SLF001 - it has no option


class Cluster:
    """Calls of the API. Each raises ``ClusterError``."""

    def __init__(self, client: AsyncClient) -> None:
        self._client: Any = client  # its overloads do not accept a variable kind
        self._turns = asyncio.Semaphore(MOST_CALLS)

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object:
        """Return one object in its current state at the API server."""
        async with self._turns, _telling(f"read {kind.__name__} {name}"):
            return dict(await self._client.get(kind, name, **_of(namespace)))

    async def list(
        self, kind: Kind, kept: Callable[[Object], Object] = dict
    ) -> tuple[list[Object], str]:
        """Return all objects of a kind in their current state, and the version of that state.

        ``kept`` returns what is needed of an object. The rest is dropped page by page, because all
        objects of a large cluster together may need more memory than this program has.
        """
        async with self._turns, _telling(f"list {kind.__name__} of {_version(kind)}"):
            found = self._client.list(kind, chunk_size=PAGE, **_of(_all(kind)))
            return [kept(one) async for one in found], found.resourceVersion

    async def watch(self, kind: Kind, version: str) -> AsyncIterator[tuple[str, Object]]:
        """Yield changes since a version, until the server ends the watch or is silent too long."""
        events = self._client.watch(
            kind, resource_version=version, server_timeout=WATCH_SECONDS, **_of(_all(kind))
        )
        stream = cast("Any", events)
        with suppress(TimeoutError):
            async with _telling(f"watch {kind.__name__}"), aclosing(stream):
                while True:
                    async with asyncio.timeout(WATCH_SECONDS + GRACE):
                        event = await anext(stream, None)
                    if event is None:
                        return
                    yield event[0], dict(event[1])

    async def patch(self, kind: Kind, found: Object, change: Mapping[str, Any]) -> Object:
        """Change an object, unless it has changed since it was read; return the changed object."""
        name = text(found, "metadata", "name")
        version = text(found, "metadata", "resourceVersion")
        metadata = {**change.get("metadata", {}), "resourceVersion": version}
        namespace = text(found, "metadata", "namespace") or None
        async with self._turns, _telling(f"patch {kind.__name__} {key_of(found)}"):
            changed = await self._client.patch(
                kind,
                name,
                {**change, "metadata": metadata},
                patch_type=PatchType.MERGE,
                **_of(namespace),
            )
        return dict(changed)

    async def create(self, kind: Kind, wanted: Object) -> None:
        """Create an object."""
        async with self._turns, _telling(f"create {kind.__name__} {key_of(wanted)}"):
            await self._client.create(kind.from_dict(wanted))

    async def delete(self, kind: Kind, name: str) -> None:
        """Delete an object that has no namespace."""
        async with self._turns, _telling(f"delete {kind.__name__} {name}"):
            await self._client.delete(kind, name)


def _version(kind: Kind) -> str:
    """Return the API group and version of a kind, as in ``apiVersion``."""
    resource: Any = kind  # lightkube's type of it does not admit generic kinds
    return str(api_info(resource).resource.api_version)


def _all(kind: Kind) -> str | None:
    return "*" if issubclass(kind, GenericNamespacedResource) else None


def _of(namespace: str | None) -> dict[str, str]:
    return {"namespace": namespace} if namespace else {}


class Mirror:
    """All objects of a kind, kept up to date: listed, then watched; listed again after a break.

    Attributes:
        kind: The kind of objects.
        objects: The objects by ``namespace/name``.
        served: Whether the API server has the kind and lets this program list it; None until then.
        synced: Set once the objects have been read, or the kind is known not to be served.
    """

    def __init__(
        self,
        cluster: Cluster,
        kind: Kind,
        changed: Callable[[str, Object | None], None],
        kept: Callable[[Object], Object] = dict,
    ) -> None:
        """Create a mirror; ``run`` fills it.

        Args:
            cluster: The cluster to read.
            kind: The kind of objects.
            changed: Called with the key and each object that is new or changed, and with the key
                and None for each one that was deleted. A new version of the same is no change.
            kept: Returns what is needed of an object: its name, its version and more.
        """
        self.objects: dict[str, Object] = {}
        self.served: bool | None = None
        self.synced = asyncio.Event()
        self.kind = kind
        self._cluster, self._changed, self._kept = cluster, changed, kept

    async def run(self) -> None:
        """Keep the mirror up to date until cancelled."""
        attempts = Attempts()
        clock = asyncio.get_running_loop().time
        while True:
            read = math.inf
            try:
                version = await self._list()
                read = clock()
                while True:
                    version = await self._watch(version)
            except ClusterError as error:
                if clock() - read > LONGEST_PAUSE:  # else all would be listed again and again
                    attempts = Attempts()
                if error.code in {MISSING, FORBIDDEN} and self.served is not True:
                    self.served = False
                    self.synced.set()
                await attempts.failed(error)

    async def _list(self) -> str:
        found, version = await self._cluster.list(self.kind, self._kept)
        self.replace(found)
        self.served = True
        self.synced.set()
        return version

    def replace(self, found: list[Object]) -> None:
        """Replace the content of the mirror by a complete list of what is kept of each object."""
        fresh = {key_of(one): one for one in found}
        for key in self.objects.keys() - fresh.keys():
            self._take("DELETED", self.objects[key])
        for one in fresh.values():
            self._take("MODIFIED", one)

    async def _watch(self, version: str) -> str:
        async with aclosing(self._cluster.watch(self.kind, version)) as events:  # type: ignore[type-var]
            async for what, found in events:
                self._take(what, self._kept(found))
                version = text(found, "metadata", "resourceVersion") or version
        return version

    def _take(self, what: str, after: Object) -> None:
        key = key_of(after)
        if what == "DELETED":
            self.objects.pop(key, None)
            self._changed(key, None)
        if what not in {"ADDED", "MODIFIED"}:
            return
        before = self.objects.get(key)
        self.objects[key] = after
        if before is None or _unversioned(before) != _unversioned(after):
            self._changed(key, after)


def _unversioned(found: Object) -> Object:
    """Return an object without its version, which changes with all that others write."""
    metadata = {**(part(found, "metadata") or {})}
    for field in ("resourceVersion", "managedFields"):
        metadata.pop(field, None)
    return {**found, "metadata": metadata}
