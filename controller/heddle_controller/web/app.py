"""The routes of the web page: pages, files, JSON and server-sent events.

No route changes what the controller stores. ``what-if`` only has a plan computed.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import numpy as np
import orjson
import structlog
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from heddle.v1 import audit_pb2, common_pb2, doctor_pb2, fabric_pb2, placement_pb2, plan_pb2
from heddle_controller.model.arrays import NONE, Ints, distinct
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.serve import errors
from heddle_controller.serve.api import Api
from heddle_controller.serve.codec import common, names
from heddle_controller.serve.interceptors.around import DENIED, DeniedLog, status_of
from heddle_controller.serve.interceptors.auth import CHANGED
from heddle_controller.serve.rates import Rates
from heddle_controller.state.errors import NotFound
from heddle_controller.web.access import (
    COOKIE,
    HEADERS,
    REPORT_HEADERS,
    Access,
    report_page,
    reports_in,
)
from heddle_controller.web.audience import NO_STORE, OverviewStream
from heddle_controller.web.feed import ViewFeed
from heddle_controller.web.overview import PlanView, flow_json, link_view, same_structure

log = structlog.stdlib.get_logger(__name__)

_Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

MOST_BODY = 1 << 20
"""Most bytes of a request's body."""
MOST_LOGIN = 4096
"""Most bytes of the body of a login, whose sender is not known yet."""
MOST_NAME = 4096
"""Most characters of a link's name. Looking up one with many commas takes long."""
UNARY_SECONDS = 60.0
"""Most seconds that an answer may take."""
SLOWEST_TOLD = 50
"""Most flows of a job, or over a link, in an answer; the slowest ones."""
MOST_ROUTES = 200
"""Most routes, and most moved flows, in an answer."""
LAST_CHANGES = 200
"""Records of the audit trail that are searched for changes of a fabric."""
STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
CODES = {code.value[0]: code for code in grpc.StatusCode}
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
READ_FABRIC, READ_PLAN = "FabricService/GetFabric", "PlanService/GetPlan"


@dataclass(frozen=True, slots=True)
class Packed:
    """Bytes that are sent again and again, and are compressed once."""

    plain: bytes
    packed: bytes
    kind: str
    tag: str

    @classmethod
    def of(cls, plain: bytes, kind: str, tag: str = "") -> Packed:
        """Compress some bytes; takes a while for many, so call it in a thread.

        ``tag`` is the entity tag; if it is empty, the tag is a hash of the bytes.
        """
        tag = tag or hashlib.sha256(plain).hexdigest()[:16]
        return cls(plain, gzip.compress(plain, 1, mtime=0), kind, tag)

    def answer(self, request: Request, status: int = 200) -> Response:
        """Return a response, compressed if the browser accepts that; 304 if it has this tag."""
        head = {
            "etag": f'"{self.tag}"',
            "cache-control": "private, no-cache",
            "vary": "accept-encoding",
        }
        if status == 200 and request.headers.get("if-none-match") == head["etag"]:  # noqa: PLR2004
            return Response(status_code=304, headers=head)
        body = self.plain
        if "gzip" in request.headers.get("accept-encoding", ""):
            body, head["content-encoding"] = self.packed, "gzip"
        return Response(body, status, head, self.kind)


class Pages:
    """Handlers of all routes."""

    def __init__(self, api: Api, access: Access, viewers: int, reports: Path | None = None) -> None:
        """Read the static files.

        Args:
            api: Its services answer the requests.
            access: Decides who may look.
            viewers: Most streams at the same time.
            reports: Folder with the emulator's reports; None for none.
        """
        self.feed = ViewFeed(api)
        self._api = api
        self._access = access
        self._most = viewers
        self._reports = reports
        self._denied = DeniedLog()
        self._files = _files()
        self._bulk: dict[tuple[str, str], Packed] = {}
        """The newest structure, loads and measured loads of each fabric, by fabric and kind."""

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(routes=list(self._routes()), exception_handlers={404: self._no_page})

    def _routes(self) -> Iterable[BaseRoute]:
        of = "/api/fabrics/{fabric}"
        reads: list[tuple[str, str, _Handler]] = [
            ("/api/fabrics", "FabricService/ListFabrics", self._fabrics),
            ("/api/reports", READ_PLAN, self._list_reports),
            (f"{of}/overview", READ_PLAN, self._overview),
            (f"{of}/structure", READ_FABRIC, self._structure),
            (f"{of}/loads", READ_PLAN, self._loads),
            (f"{of}/switch", READ_FABRIC, self._switch),
            (f"{of}/measured", READ_PLAN, self._measured),
            (f"{of}/link", READ_PLAN, self._link),
            (f"{of}/jobs", "PlacementService/ListJobs", self._jobs),
            (f"{of}/job", "PlacementService/GetJob", self._job),
            (f"{of}/examination", "DoctorService/ExamineJob", self._examination),
            (f"{of}/health", "DoctorService/ExamineInstallation", self._health),
            (f"{of}/routes", "PlanService/ListRoutes", self._routes_of),
            (f"{of}/flow", "PlanService/ExplainFlow", self._flow),
            (f"{of}/plans", "PlanService/ListPlans", self._plans),
            (f"{of}/comparison", "PlanService/ComparePlans", self._comparison),
            (f"{of}/changes", "AuditService/ListAuditRecords", self._changes),
            (f"{of}/stream", "PlanService/WatchPlan", self._stream),
        ]
        for path, call, handler in reads:
            yield Route(path, partial(self._answer, call, handler), methods=["GET"])
        yield Route(
            f"{of}/what-if",
            partial(self._answer, "PlanService/WhatIf", self._what_if),
            methods=["POST"],
        )
        yield Route("/api/login", partial(self._answer, "", self._login), methods=["POST"])
        yield Route("/api/logout", partial(self._answer, "", self._logout), methods=["POST"])
        yield Route("/api/session", partial(self._answer, "", self._session), methods=["GET"])
        yield Route("/static/{name}", self._file, methods=["GET"])
        for path in ("/", "/fabrics/{rest:path}"):
            yield Route(path, self._page, methods=["GET"])
        yield Route("/reports/{name}", self._report, methods=["GET"])

    async def _answer(self, call: str, handler: _Handler, request: Request) -> Response:
        """Check the caller, and return the handler's answer, or the error as JSON.

        ``call`` is the API's method whose permission is needed; empty if the handler checks.
        """
        try:
            async with asyncio.timeout(UNARY_SECONDS):
                if call:
                    self._access.check(request, call)
                response = await handler(request)
        except ClientDisconnect:
            response = Response(status_code=400)
        except Exception as error:  # noqa: BLE001 - the outermost edge: nothing may pass
            if isinstance(error, errors.Refusal) and error.code in DENIED:
                peer = request.client.host if request.client else ""
                self._denied.tell(
                    error.code.name, error.message, peer=peer, rpc=call or request.url.path
                )
            response = _refused(error)
        stale = self._api.store.stale_for()
        if stale > 0:
            response.headers["heddle-stale-seconds"] = f"{stale:.1f}"
        return _guarded(response)

    async def _page(self, request: Request) -> Response:
        """Return the page, or the login page if the caller may not look."""
        try:
            self._access.check(request, READ_FABRIC)
        except errors.Refusal as refusal:
            status = STATUS.get(refusal.code, 403)
            return _guarded(self._files["login.html"].answer(request, status))
        return _guarded(self._files["index.html"].answer(request))

    async def _file(self, request: Request) -> Response:
        """Return a script or style; these are not secret, so access is not checked."""
        found = self._files.get(request.path_params["name"])
        if found is None:
            return await self._no_page(request, None)
        return _guarded(found.answer(request))

    async def _list_reports(self, request: Request) -> Response:
        """Return names and times of reports, newest first, and whether a folder was named."""
        del request
        found = await asyncio.to_thread(reports_in, self._reports) if self._reports else []
        return _json({"named": self._reports is not None, "reports": found})

    async def _report(self, request: Request) -> Response:
        """Return a report that the emulator wrote; "index.html" lists the results of all."""
        try:
            self._access.check(request, READ_PLAN)
            body = await asyncio.to_thread(report_page, self._reports, request.path_params["name"])
        except errors.Refusal as refusal:
            return _guarded(_refused(refusal))
        return Response(body, headers=REPORT_HEADERS, media_type="text/html")

    async def _no_page(self, request: Request, error: object) -> Response:
        del request, error
        message = "there is no such page here: begin at /"
        return _guarded(_refused(errors.not_found("NO_PAGE", message)))

    async def _session(self, request: Request) -> Response:
        """Return role and identity of the caller."""
        caller = self._access.check(request, READ_FABRIC)
        return _json({"role": caller.role, "identity": caller.identity})

    async def _login(self, request: Request) -> Response:
        """Put a token into a cookie, if it allows its bearer to look."""
        token = (await _body(request, MOST_LOGIN)).get("token")
        if not isinstance(token, str):
            raise refuse("request", "token", 'it is missing: send {"token": "heddle..."}')
        headers = [pair for pair in request.scope["headers"] if pair[0] != b"authorization"]
        bearer = (b"authorization", f"Bearer {token.strip()}".encode("ascii", "replace"))
        self._access.check(Request({**request.scope, "headers": [*headers, bearer]}), READ_FABRIC)
        response = _json({})
        secure = request.url.scheme == "https"
        response.set_cookie(
            COOKIE, token.strip(), httponly=True, secure=secure, samesite="strict", path="/"
        )
        return response

    async def _logout(self, request: Request) -> Response:
        del request
        response = _json({})
        response.delete_cookie(COOKIE, path="/")
        return response

    async def _fabrics(self, request: Request) -> Response:
        asked = fabric_pb2.ListFabricsRequest(page_token=request.query_params.get("page", ""))
        return _message(await self._api.fabric.ListFabrics(asked, _NO_CONTEXT))

    async def _overview(self, request: Request) -> Response:
        fabric = _fabric(request)
        view = await self.feed.show(fabric)
        return Response(view.overview, headers=NO_STORE, media_type=JSON)

    async def _structure(self, request: Request) -> Response:
        fabric = _fabric(request)
        record = await self._api.store.get_fabric(fabric)
        links = await self.feed.view(fabric).links(record)
        make = partial(links.json, record.fabric.structure, record.revision)
        return (await self._packed(fabric, "structure", f"r{record.revision}", make)).answer(
            request
        )

    async def _loads(self, request: Request) -> Response:
        """Return how full links are by plan; 404 if the present structure has no plan yet."""
        fabric = _fabric(request)
        record, plan = await self._planned(fabric)
        if not same_structure(plan.plan.fabric, record.fabric):
            raise errors.not_found("NO_PLAN", "the fabric was put anew, and not planned since")
        links = await self.feed.view(fabric).links(record)
        tag = f"p{plan.tag}.{record.revision}"
        return (await self._packed(fabric, "loads", tag, partial(plan.json, links))).answer(request)

    async def _measured(self, request: Request) -> Response:
        """Return how full links are by the measured rates of flows."""
        fabric = _fabric(request)
        record, plan = await self._planned(fabric)
        links = await self.feed.view(fabric).links(record)
        rates = self._api.rates.newest(fabric)
        newest = max((one.time for one in rates), default=0.0)
        tag = f"m{plan.tag}.{record.revision}.{newest}"
        make = partial(plan.measured_json, links, rates)
        return (await self._packed(fabric, "measured", tag, make)).answer(request)

    async def _packed(self, fabric: str, what: str, tag: str, make: Callable[[], bytes]) -> Packed:
        """Return compressed content, made once per tag; content with an older tag is dropped."""
        tag = f"{self.feed.start}.{tag}"
        known = self._bulk.get((fabric, what))
        if known is None or known.tag != tag:
            known = await asyncio.to_thread(lambda: Packed.of(make(), JSON, tag))
            self._bulk[fabric, what] = known
        return known

    async def _planned(self, fabric: str) -> tuple[Any, PlanView]:
        """Return the fabric and the view of its newest plan; raises ``Refusal`` without a plan."""
        record = await self._api.store.get_fabric(fabric)
        plan = await self.feed.view(fabric).plan(await self._api.store.committed(fabric))
        if plan is None:
            message = f"fabrics/{fabric} has no plan yet: submit a job"
            raise errors.not_found("NO_PLAN", message)
        return record, plan

    async def _switch(self, request: Request) -> Response:
        """Return a switch with its links, its agent, and the generation that it holds."""
        fabric, switch = _fabric(request), _asked(request, "id")
        record = await self._api.store.get_fabric(fabric)
        row = record.fabric.structure.index.get(switch, NONE)
        if row == NONE or record.fabric.structure.nodes.kind[row] == NodeKind.NIC:
            cure = "look for it on the view Fabric"
            raise NotFound(f"switch {switch[:80]!r} of fabrics/{fabric}", cure)
        committed = await self._api.store.committed(fabric)
        plan = await self.feed.view(fabric).plan(committed)
        if plan is not None and not same_structure(plan.plan.fabric, record.fabric):
            plan = None
        session = self._api.gateway.sessions(fabric).get(switch)
        down = self._api.observations.of(fabric).seen(record.fabric).down
        told = await asyncio.to_thread(_switch_json, record.fabric, row, plan, down)
        told["agent"] = (
            {"instance": session.instance, "version": session.software_version} if session else None
        )
        told["aside"] = self._api.gateway.held_aside(fabric).get(switch, "")
        if committed is not None:
            told["holds"] = committed.programmed.of(switch)
            told["generation"] = committed.generation
        return _json(told)

    async def _link(self, request: Request) -> Response:
        """Return a link in both directions, with the flows over it, the slowest first."""
        fabric = _fabric(request)
        record, plan = await self._planned(fabric)
        row = _link_row(record.fabric, request)
        if not same_structure(plan.plan.fabric, record.fabric):
            raise errors.not_found("NO_PLAN", "the fabric was put anew, and not planned since")
        down = self._api.observations.of(fabric).seen(record.fabric).down
        rates = self._api.rates.newest(fabric)
        told = await asyncio.to_thread(_link_json, record.fabric, row, plan, down, rates)
        ends = (*sorted((told["source"], told["target"])), told["key"])
        unwell = self._api.unwell(fabric).get((ends[0], ends[1], ends[2]))
        said = ("down" if row in down else "", unwell.reason if unwell else "")
        told["condition"] = ", ".join(filter(None, said))
        return _json(told)

    async def _jobs(self, request: Request) -> Response:
        asked = placement_pb2.ListJobsRequest(
            parent=names.fabric_name(_fabric(request)),
            page_size=100,
            page_token=request.query_params.get("page", ""),
        )
        answer = await self._api.placement.ListJobs(asked, _NO_CONTEXT)
        for job in answer.jobs:
            del job.spec.hosts[:]
        return _message(answer)

    async def _job(self, request: Request) -> Response:
        """Return a job, and its slowest flows, each with the link that limits it."""
        fabric, job = _fabric(request), _asked(request, "id")
        asked = placement_pb2.GetJobRequest(name=names.job_name(fabric, job))
        told = _dict(await self._api.placement.GetJob(asked, _NO_CONTEXT))
        plan = await self.feed.view(fabric).plan(await self._api.store.committed(fabric))
        flows = await asyncio.to_thread(_job_flows, plan, job) if plan else []
        return _json({"job": told, "slowest": flows})

    async def _routes_of(self, request: Request) -> Response:
        query = request.query_params
        asked = plan_pb2.ListRoutesRequest(
            parent=names.plan_name(_fabric(request)),
            page_size=MOST_ROUTES,
            page_token=query.get("page", ""),
            job=query.get("job", ""),
        )
        if "source" in query:
            asked.link.source, asked.link.target = query["source"], _asked(request, "target")
            asked.link.key = query.get("key", "")
        return _message(await self._api.plan.ListRoutes(asked, _NO_CONTEXT))

    async def _examination(self, request: Request) -> Response:
        """Return what ``heddle doctor job`` shows."""
        name = names.job_name(_fabric(request), _asked(request, "id"))
        asked = doctor_pb2.ExamineJobRequest(name=name)
        return _message(await self._api.doctor.ExamineJob(asked, _NO_CONTEXT))

    async def _health(self, request: Request) -> Response:
        """Return what ``heddle doctor`` shows about what this controller sees."""
        asked = doctor_pb2.ExamineInstallationRequest(fabric=names.fabric_name(_fabric(request)))
        return _message(await self._api.doctor.ExamineInstallation(asked, _NO_CONTEXT))

    async def _flow(self, request: Request) -> Response:
        asked = plan_pb2.ExplainFlowRequest(
            plan=names.plan_name(_fabric(request)), flow=_asked(request, "id")
        )
        return _message(await self._api.plan.ExplainFlow(asked, _NO_CONTEXT))

    async def _plans(self, request: Request) -> Response:
        """Return plans, newest first, each with the causes that led to it."""
        asked = plan_pb2.ListPlansRequest(
            parent=names.plan_name(_fabric(request)),
            page_size=100,
            page_token=request.query_params.get("page", ""),
        )
        return _message(await self._api.plan.ListPlans(asked, _NO_CONTEXT))

    async def _comparison(self, request: Request) -> Response:
        """Return what moved between two plans."""
        name = names.plan_name(_fabric(request))
        before, after = (_number(request, which) for which in ("before", "after"))
        asked = plan_pb2.ComparePlansRequest(plan=name, before=before, after=after)
        answer = await self._api.plan.ComparePlans(asked, _NO_CONTEXT)
        del answer.moved[MOST_ROUTES:]
        return _message(answer)

    async def _changes(self, request: Request) -> Response:
        """Return clients' recent changes of a fabric from the audit trail, newest first."""
        prefix = names.fabric_name(_fabric(request))
        listed = self._api.audit.ListAuditRecords
        head = (await listed(audit_pb2.ListAuditRecordsRequest(page_size=1), _NO_CONTEXT)).head
        after = max(head.number - LAST_CHANGES, 0)
        asked = audit_pb2.ListAuditRecordsRequest(after=after, page_size=LAST_CHANGES)
        records = [
            _dict(record)
            for record in reversed((await listed(asked, _NO_CONTEXT)).records)
            if record.name == prefix or record.name.startswith(f"{prefix}/")
        ]
        for record in records:
            del record["before"], record["after"], record["hash"]
        return _json({"changes": records})

    async def _what_if(self, request: Request) -> Response:
        """Answer a what-if question as the API does; the fabric's name comes from the URL.

        Besides the fields of the API, ``down`` names a link as people write it: ``A,B,KEY``.
        """
        given, fabric = await _body(request), _fabric(request)
        down = given.pop("down", None)
        try:
            asked = ParseDict(given, plan_pb2.WhatIfRequest())
        except ParseError as error:
            raise refuse("request", "", f"is no WhatIfRequest in JSON: {error}") from None
        if down is not None:
            if not isinstance(down, str) or len(down) > MOST_NAME:
                reason = f"give the name of a link, of at most {MOST_NAME:,} characters"
                raise refuse("request", "down", reason)
            stored = (await self._api.store.get_fabric(fabric)).fabric
            link = await asyncio.to_thread(common.link_named, stored, down)
            if link is None:
                cure = "write A,B or A,B,KEY with the ids of its ends"
                reason = f"{down[:160]!r} is no link of the fabric: {cure}"
                raise refuse("request", "down", reason)
            asked.links.add(link=link, admin_state=common_pb2.STATE_DOWN)
        asked.fabric = names.fabric_name(fabric)
        return _message(await self._api.plan.WhatIf(asked, _NO_CONTEXT))

    async def _stream(self, request: Request) -> Response:
        """Stream the overview whenever it changes.

        Events have ``id: START.NUMBER``, so that a browser that reconnects does not get the same
        overview twice.
        """
        fabric = _fabric(request)
        view = await self.feed.show(fabric)
        if self.feed.viewers >= self._most:
            message = f"{self._most} viewers watch already: ask for one overview now and then"
            raise errors.unavailable("TOO_MANY_VIEWERS", message, retry_seconds=10.0)
        caller = self._access.caller(request)

        def check() -> None:
            if self._access.caller(request) != caller:
                raise CHANGED

        return OverviewStream(view.audience, request.headers.get("last-event-id", ""), check)


JSON = "application/json"
_NO_CONTEXT: Any = None
"""Passed as the gRPC context, which methods that only read do not use."""


def _files() -> dict[str, Packed]:
    found = {}
    for file in resources.files("heddle_controller.web").joinpath("static").iterdir():
        kind = TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            found[file.name] = Packed.of(file.read_bytes(), f"{kind}; charset=utf-8")
    return found


def _guarded(response: Response) -> Response:
    response.headers.update(HEADERS)
    return response


def _json(told: object, status: int = 200) -> Response:
    body = orjson.dumps(told, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, NO_STORE, JSON)


def _dict(message: Message) -> dict[str, Any]:
    told: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return told


def _message(message: Message) -> Response:
    return _json(_dict(message))


def _refused(error: Exception) -> Response:
    """Return an error as JSON, with the same status as in the API."""
    status = status_of(error)
    if isinstance(error, TimeoutError):
        message = f"not done within {UNARY_SECONDS:g} s"
        code = grpc.StatusCode.DEADLINE_EXCEEDED
        status = errors.refused(errors.Refusal(code, "SERVER_DEADLINE", message))
    if status is None:
        incident = uuid.uuid4().hex[:12]
        log.error("page failed", incident=incident, exc_info=error)
        status = errors.refused(errors.internal(incident))
    response = _json(
        {"message": status.message, **_details(status)}, STATUS.get(CODES[status.code], 500)
    )
    if status.code == grpc.StatusCode.UNAUTHENTICATED.value[0]:
        response.headers["www-authenticate"] = 'Bearer realm="heddle"'
    if isinstance(error, errors.Refusal) and error.retry_seconds is not None:
        response.headers["retry-after"] = f"{max(round(error.retry_seconds), 1)}"
    return response


def _details(status: status_pb2.Status) -> dict[str, Any]:
    """Return a status's reason for programs, and its field violations."""
    told: dict[str, Any] = {"reason": "", "fields": []}
    for packed in status.details:
        info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        if packed.Unpack(info):
            told["reason"] = info.reason
        elif packed.Unpack(bad):
            told["fields"] = [[one.field, one.description] for one in bad.field_violations]
    return told


async def _body(request: Request, most: int = MOST_BODY) -> dict[str, Any]:
    """Return the JSON object in a request's body.

    Raises:
        InputError: the body is not a JSON object, or is too large.
    """
    if request.headers.get("content-type", "").partition(";")[0] != JSON:
        raise refuse("request", "content-type", f"send {JSON}")
    whole = b""
    async for part in request.stream():
        whole += part
        if len(whole) > most:
            raise refuse("request", "", f"is larger than {most:,} bytes")
    try:
        given = orjson.loads(whole)
    except orjson.JSONDecodeError as error:
        raise refuse("request", "", f"is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise refuse("request", "", "is no JSON object")
    return given


def _fabric(request: Request) -> str:
    return names.check_id(request.path_params["fabric"], "fabric")


def _asked(request: Request, name: str) -> str:
    found: str = request.query_params.get(name, "")
    if not found:
        raise refuse("request", name, "it is missing: say it behind '?'")
    return found


def _number(request: Request, name: str) -> int:
    """Return a generation from the URL's query; 0 if it is missing."""
    given: str = request.query_params.get(name, "") or "0"
    if not (given.isascii() and given.isdecimal() and len(given) < 20):  # noqa: PLR2004 - 64 bits
        raise refuse("request", name, f"{given[:40]!r} is no generation: see the plans")
    return int(given)


def _link_row(fabric: Fabric, request: Request) -> int:
    source, target = _asked(request, "source"), _asked(request, "target")
    rows = fabric.find_links(source, target, request.query_params.get("key") or None)
    if len(rows) != 1:
        why = "several: say the key" if rows else "none"
        raise errors.not_found("NO_LINK", f"between {source[:80]!r} and {target[:80]!r} is {why}")
    return rows[0]


def _state(fabric: Fabric, link: int, down: frozenset[int]) -> str:
    return "DOWN" if link in down else State(int(fabric.effective[link])).name


def _used(plan: PlanView | None, arc: int) -> float | None:
    return float(plan.fares.utilization[arc]) if plan is not None else None


def _switch_json(
    fabric: Fabric, row: int, plan: PlanView | None, down: frozenset[int]
) -> dict[str, Any]:
    """Return a switch and its links, the fullest first; ``plan`` is None without a plan."""
    structure = fabric.structure
    out = structure.leaving(row)
    links = [
        {
            **link_view(structure, arc >> 1, arc=arc),
            "kind": NodeKind(int(structure.nodes.kind[structure.head[arc]])).name.lower(),
            "gbps": float(structure.capacity[arc]),
            "out": _used(plan, arc),
            "in": _used(plan, arc ^ 1),
            "state": _state(fabric, arc >> 1, down),
        }
        for arc in out.tolist()
    ]
    links.sort(key=lambda link: -max(link["out"] or 0.0, link["in"] or 0.0))
    return {
        "id": structure.nodes.ids[row],
        "kind": NodeKind(int(structure.nodes.kind[row])).name.lower(),
        "zone": structure.zone_names[zone]
        if (zone := int(structure.nodes.zone[row])) != NONE
        else "",
        "state": State(int(fabric.node_state[row])).name,
        "links": links,
    }


def _link_json(
    fabric: Fabric, row: int, plan: PlanView, down: frozenset[int], rates: Sequence[Rates]
) -> dict[str, Any]:
    arcs = (2 * row, 2 * row + 1)
    measured = plan.measured(rates)
    forth, back = (float(measured.utilization[arc]) if measured.flows else None for arc in arcs)
    nodes, links = fabric.structure.nodes, fabric.structure.links
    ends = (int(links.a[row]), int(links.b[row]))
    return {
        **link_view(fabric.structure, row),
        "nics": [nodes.ids[node] for node in ends if nodes.kind[node] == NodeKind.NIC],
        "gbps": float(links.gbps[row]),
        "state": _state(fabric, row, down),
        "forth": {**_direction(plan, arcs[0]), "measured": forth},
        "back": {**_direction(plan, arcs[1]), "measured": back},
    }


def _direction(plan: PlanView, arc: int) -> dict[str, Any]:
    """Return the load of an arc by plan, with the jobs and the slowest flows over it."""
    paths = plan.plan.paths
    uses = np.zeros(len(plan.fares.utilization), dtype=np.bool_)
    uses[arc] = True
    over = distinct(paths.flow[paths.crosses(uses)])
    flows = plan.plan.flows
    jobs = distinct(flows.job[over])
    return {
        "load": float(plan.plan.loads[arc]),
        "utilization": float(plan.fares.utilization[arc]),
        "flow_count": len(over),
        "jobs": [flows.job_names[job] for job in jobs.tolist()],
        "flows": [flow_json(plan, flow) for flow in plan.slowest_of(over, SLOWEST_TOLD).tolist()],
    }


def _job_flows(plan: PlanView, job: str) -> list[dict[str, Any]]:
    flows = plan.plan.flows
    if job not in flows.job_names:
        return []
    rows: Ints = np.flatnonzero(flows.job == flows.job_names.index(job))
    return [flow_json(plan, row) for row in plan.slowest_of(rows, SLOWEST_TOLD).tolist()]
