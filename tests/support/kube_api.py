"""A small API server of Kubernetes: objects with versions, watches that end, and refusals.

It does what clients rely on: list with pages, watch from a version with 410 if that is gone, merge
patches and creation with 409, a status that only its own path changes, 422 for what the schemas
refuse, and 403 for what a role does not allow. It contains no code of Kubernetes.
"""

from __future__ import annotations

import asyncio
import copy
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.support.waiting import until

Json = dict[str, Any]
Validator = Callable[[Json | None, Json], list[str]]


@dataclass(frozen=True)
class Served:
    """A kind that is served."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = False
    has_status: bool = False
    validate: Validator = field(default=lambda _, __: [])

    @property
    def api_version(self) -> str:
        """The value of ``apiVersion`` in objects."""
        return f"{self.group}/{self.version}".removeprefix("/")


class Refused(Exception):  # noqa: N818 - an answer
    """A request that is answered with an error status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Garbled(Exception):  # noqa: N818 - an answer
    """A request that something between client and server answers with garbage."""


@dataclass(eq=False)
class _Watcher:
    """A watch that is open."""

    wake: asyncio.Event = field(default_factory=asyncio.Event)
    cut: bool = False


class KubeApi:
    """The server's state, and what a test does to it. All of it belongs to one event loop."""

    def __init__(self, kinds: list[Served]) -> None:
        self.kinds = {(kind.group, kind.plural): kind for kind in kinds}
        self.objects: dict[tuple[str, str, str], Json] = {}
        """Objects by plural, namespace and name."""
        self.version = 100
        self.floor = 0
        """Watches from an older version are refused."""
        self.writes: list[tuple[str, str, Json | None]] = []
        """Writes of clients: verb, path, body."""
        self.used: Counter[tuple[str, str, str]] = Counter()
        """Counts of requests by verb, group and plural."""
        self.allowed: Callable[[str, str, str, str], bool] = lambda *_: True
        """Whether a request is allowed: verb, group, plural (with subresource) and name."""
        self.failing: list[tuple[str, str, int]] = []
        """Verb, plural and code of requests that fail once each; 0: answered with garbage."""
        self.away = False
        self.passing = asyncio.Event()
        """Requests wait until it is set."""
        self.passing.set()
        self.under_way = 0
        """Number of requests that are not answered yet."""
        self.most_under_way = 0
        self.hasty = False
        """Whether every watch ends at once, without an event."""
        self.retry_after = ""
        """Header of refusals: after how many seconds to try again."""
        self._events: list[tuple[int, str, str, Json]] = []
        self._watchers: set[_Watcher] = set()
        self.url = ""
        self.access: tuple[Json, Json] = ({}, {})
        """Parts of a kubeconfig: additions to the cluster, and the user."""

    # What a test does.

    def put(self, plural: str, wanted: Json) -> Json:
        """Create or replace an object without any checks."""
        one = copy.deepcopy(wanted)
        meta = one.setdefault("metadata", {})
        key = (plural, meta.get("namespace", ""), meta["name"])
        before = self.objects.get(key)
        kept = (before or {}).get("metadata", {})
        meta.setdefault("uid", kept.get("uid") or str(uuid.uuid4()))
        meta.setdefault("creationTimestamp", kept.get("creationTimestamp") or now())
        self._store(key, one, "MODIFIED" if before else "ADDED")
        return one

    def change(self, plural: str, namespace: str, name: str, change: Json) -> Json:
        """Merge a change into an object."""
        merged: Json = merge(self.objects[plural, namespace, name], change)
        self._store((plural, namespace, name), merged, "MODIFIED")
        return merged

    def remove(self, plural: str, namespace: str, name: str) -> None:
        """Delete an object."""
        gone = self.objects.pop((plural, namespace, name))
        self.version += 1
        gone = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.version)}}
        self._tell("DELETED", plural, gone)

    def begin_to_delete(self, plural: str, namespace: str, name: str) -> None:
        """Mark an object as being deleted, as if something still held it."""
        self.change(plural, namespace, name, {"metadata": {"deletionTimestamp": now()}})

    def clear(self) -> None:
        """Remove all objects except namespaces and checks, and forget planned failures."""
        for plural, namespace, name in list(self.objects):
            if plural not in {"namespaces", "admissionchecks"}:
                self.remove(plural, namespace, name)
        self.writes.clear()
        self.failing.clear()
        self.away = self.hasty = False
        self.passing.set()
        self.most_under_way = self.under_way
        self.retry_after = ""

    def of(self, plural: str) -> dict[str, Json]:
        """Return the objects of a kind by name, with the namespace if there is one."""
        return {
            f"{namespace}/{name}".removeprefix("/"): copy.deepcopy(one)
            for (kind, namespace, name), one in self.objects.items()
            if kind == plural
        }

    def cut_watches(self) -> None:
        """Break every open watch."""
        for watcher in self._watchers:
            watcher.cut = True
            watcher.wake.set()

    def compact(self) -> None:
        """Forget all events, so that watches have to begin with a list."""
        self.floor = self.version
        self._events.clear()
        self.cut_watches()

    @property
    def watching(self) -> int:
        """Number of open watches."""
        return len(self._watchers)

    # What clients do.

    async def handle(self, request: Request) -> Response:
        """Answer one request."""
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self.passing.wait()
            return await self._answer(request)
        except Garbled:
            return Response(b"<html>a gateway", 200, {"content-type": "application/json"})
        except Refused as refused:
            if refused.code == 502:
                return Response(b"bad gateway", 502)
            headers = {"retry-after": self.retry_after} if self.retry_after else None
            return JSONResponse(status_of(refused.code, str(refused)), refused.code, headers)
        finally:
            self.under_way -= 1

    async def _answer(self, request: Request) -> Response:
        kind, namespace, name, part = self._parsed(request.url.path)
        query = request.query_params
        verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}.get(
            request.method, "get" if name else "watch" if query.get("watch") else "list"
        )
        resource = f"{kind.plural}/{part}" if part else kind.plural
        self.used[verb, kind.group, resource] += 1
        if not self.allowed(verb, kind.group, resource, name):
            raise Refused(
                403, f"{resource} is forbidden: cannot {verb} in API group {kind.group!r}"
            )
        self._fail(verb, resource)
        if verb == "list":
            return self._list(kind, namespace, query)
        if verb == "watch":
            stream = self._watch(kind, namespace, int(query.get("resourceVersion") or 0))
            return StreamingResponse(stream, media_type="application/json")
        key = (kind.plural, namespace, name)
        if verb == "get":
            return JSONResponse(self._found(key))
        body = json.loads(await request.body()) if verb != "delete" else None
        self.writes.append((verb, request.url.path, body))
        if verb == "create":
            return JSONResponse(self._create(kind, namespace, body), 201)
        self._found(key)
        if verb == "delete":
            self.remove(*key)
            return JSONResponse(status_of(200, "deleted"))
        if request.headers["content-type"] != "application/merge-patch+json":
            raise Refused(415, f"patches of {request.headers['content-type']} are not taken")
        self._patch(kind, key, part, body)
        return JSONResponse(self.objects[key])

    def _fail(self, verb: str, resource: str) -> None:
        if self.away:
            raise Refused(503, "the server is away")
        for place, (one, plural, code) in enumerate(self.failing):
            if (one, plural) == (verb, resource):
                del self.failing[place]
                if not code:
                    raise Garbled
                raise Refused(code, f"made to fail with {code}")

    def _found(self, key: tuple[str, str, str]) -> Json:
        if key not in self.objects:
            raise Refused(404, f'{key[0]} "{key[2]}" not found')
        return self.objects[key]

    def _parsed(self, path: str) -> tuple[Served, str, str, str]:
        words = path.strip("/").split("/")
        group, version, rest = (
            ("", words[1], words[2:]) if words[0] == "api" else (words[1], words[2], words[3:])
        )
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        kind = self.kinds.get((group, rest[0]))
        if kind is None or kind.version != version:
            raise Refused(404, "the server could not find the requested resource")
        name, part = [*rest[1:], "", ""][:2]
        if part not in ({"", "status"} if kind.has_status else {""}):
            raise Refused(404, "the server could not find the requested resource")
        return kind, namespace, name, part

    def _list(self, kind: Served, namespace: str, query: Mapping[str, str]) -> Response:
        found = [
            one
            for (plural, place, _), one in sorted(self.objects.items())
            if plural == kind.plural and namespace in {"", place}
        ]
        begin, limit = int(query.get("continue") or 0), int(query.get("limit") or 0)
        page = found[begin : begin + limit] if limit else found[begin:]
        meta: Json = {"resourceVersion": str(self.version)}
        if begin + len(page) < len(found):
            meta["continue"] = str(begin + len(page))
        return JSONResponse(
            {
                "apiVersion": kind.api_version,
                "kind": f"{kind.kind}List",
                "metadata": meta,
                "items": page,
            }
        )

    async def _watch(self, kind: Served, namespace: str, since: int) -> AsyncIterator[bytes]:
        watcher = _Watcher()
        self._watchers.add(watcher)
        try:
            while not (watcher.cut or self.hasty):
                if since < self.floor:
                    gone = status_of(410, f"too old resource version: {since} ({self.floor})")
                    yield json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n"
                    return
                watcher.wake.clear()
                for version, what, plural, one in [one for one in self._events if one[0] > since]:
                    since = version
                    places = {"", one["metadata"].get("namespace", "")}
                    if plural == kind.plural and namespace in places:
                        yield json.dumps({"type": what, "object": one}).encode() + b"\n"
                await watcher.wake.wait()
        finally:
            self._watchers.discard(watcher)

    def _create(self, kind: Served, namespace: str, body: Any) -> Json:
        name = body["metadata"]["name"]
        key = (kind.plural, namespace, name)
        if key in self.objects:
            raise Refused(409, f'{kind.plural} "{name}" already exists')
        if (body.get("apiVersion"), body.get("kind")) != (kind.api_version, kind.kind):
            raise Refused(400, f"the object is {body.get('apiVersion')} {body.get('kind')}")
        one = {key: value for key, value in body.items() if key != "status" or not kind.has_status}
        self._check(kind, None, one)
        one["metadata"] = {
            **one["metadata"],
            "uid": str(uuid.uuid4()),
            "generation": 1,
            "creationTimestamp": now(),
        }
        self._store(key, one, "ADDED")
        return one

    def _patch(self, kind: Served, key: tuple[str, str, str], part: str, body: Any) -> None:
        before = self.objects[key]
        wanted = body.get("metadata", {}).get("resourceVersion")
        if wanted not in {None, before["metadata"]["resourceVersion"]}:
            raise Refused(
                409,
                f'Operation cannot be fulfilled on {kind.plural} "{key[2]}": the object has been '
                "modified; please apply your changes to the latest version and try again",
            )
        after: Json = merge(before, body)
        if kind.has_status:  # each path changes only its own part
            for name in ("spec", "status"):
                if (name == "status") != (part == "status"):
                    after[name] = copy.deepcopy(before.get(name))
                    if after[name] is None:
                        del after[name]
        self._check(kind, before, after)
        if after == before:
            return
        if after.get("spec") != before.get("spec"):
            after["metadata"]["generation"] = before["metadata"].get("generation", 1) + 1
        self._store(key, after, "MODIFIED")

    @staticmethod
    def _check(kind: Served, before: Json | None, after: Json) -> None:
        if wrong := kind.validate(before, after):
            name = after["metadata"]["name"]
            raise Refused(422, f'{kind.kind} "{name}" is invalid: {"; ".join(wrong)}')

    def _store(self, key: tuple[str, str, str], one: Json, what: str) -> None:
        self.version += 1
        kind = next(kind for kind in self.kinds.values() if kind.plural == key[0])
        one.setdefault("apiVersion", kind.api_version)
        one.setdefault("kind", kind.kind)
        one["metadata"]["resourceVersion"] = str(self.version)
        self.objects[key] = one
        self._tell(what, key[0], copy.deepcopy(one))

    def _tell(self, what: str, plural: str, one: Json) -> None:
        self._events.append((self.version, what, plural, one))
        for watcher in self._watchers:
            watcher.wake.set()


def merge(before: Any, change: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(change, dict):
        return copy.deepcopy(change)
    found = dict(copy.deepcopy(before)) if isinstance(before, dict) else {}
    for name, value in change.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merge(found.get(name), value)
    return found


def status_of(code: int, message: str) -> Json:
    """Return the object that says how a request ended."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success" if code < 400 else "Failure",
        "message": message,
        "code": code,
    }


def now() -> str:
    """Return the current time in the form that objects use."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class _Server(uvicorn.Server):
    """A server that leaves signals to the test run."""

    def install_signal_handlers(self) -> None:
        """Install none."""


@asynccontextmanager
async def kube_api(kinds: list[Served], port: int = 0) -> AsyncIterator[KubeApi]:
    """Run a server that listens on loopback."""
    api = KubeApi(kinds)
    methods = ["GET", "POST", "PATCH", "DELETE"]
    app = Starlette(routes=[Route("/{path:path}", api.handle, methods=methods)])
    config = uvicorn.Config(app, port=port, log_level="error", timeout_graceful_shutdown=1)
    server = _Server(config)
    task = asyncio.create_task(server._serve())
    await until(lambda: server.started or task.done(), "the API to listen")
    api.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield api
    finally:
        api.cut_watches()
        server.should_exit = True
        await task
