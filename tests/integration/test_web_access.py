"""Who may look at the page, what it costs others, and how odd requests are refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from heddle.v1 import common_pb2, fabric_pb2
from heddle_controller.serve.interceptors.auth import Admission, Allowance
from heddle_controller.serve.security.caller import Caller, Role
from heddle_controller.serve.security.certificates import Tls
from heddle_controller.serve.security.files import TokenFile, new_token
from heddle_controller.state.errors import Unavailable
from heddle_controller.web import server
from heddle_controller.web.feed import BEAT_SECONDS
from heddle_controller.web.server import CONNECTIONS_EACH, SPARE_CONNECTIONS, WebServer, WebTerms
from heddle_emulator.report.folder import write
from tests.integration.certifying import Authority, Pair
from tests.support.report_evidences import held
from tests.support.serving import Serving, serving, told_down
from tests.support.waiting import PATIENCE, until
from tests.support.web import SECONDS, Answer, connect, event, fetch

OPEN = WebTerms("127.0.0.1", 0)
OVERVIEW = "/api/fabrics/f1/overview"
STREAM = "/api/fabrics/f1/stream"


@dataclass
class Web:
    """The page over a real API, and a store with fabric f1."""

    s: Serving
    url: str
    tls: ssl.SSLContext | None = None

    async def get(
        self,
        path: str,
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> Answer:
        """Send one request, a POST if there is data, and return the answer."""
        url, told = self.url + path, tls or self.tls
        return await asyncio.to_thread(fetch, url, headers=headers, data=data, tls=told)


@asynccontextmanager
async def web(path: Path, terms: WebTerms = OPEN, trust: Path | None = None) -> AsyncIterator[Web]:
    """Serve the page on a free port."""
    async with serving(path) as s:
        await s.put_fabric()
        server = WebServer(s.api, terms)
        await server.start()
        try:
            if terms.tls is None:
                yield Web(s, f"http://127.0.0.1:{server.port}")
            else:
                yield Web(s, f"https://localhost:{server.port}", trusting(trust))
        finally:
            await server.stop()


def trusting(ca: Path | None, pair: Pair | None = None) -> ssl.SSLContext:
    """Return a client's TLS context, with a certificate of its own or without one."""
    context = ssl.create_default_context(cafile=ca)
    if pair is not None:
        context.load_cert_chain(pair.cert, pair.key)
    return context


def granted(path: Path, **roles: Role) -> dict[str, str]:
    """Write a token file for names and roles, and return the tokens by name."""
    found, lines = {}, []
    for name, role in roles.items():
        where = ("f1", "l0") if role is Role.AGENT else ()
        found[name], grant = new_token(Caller(role, "", *where), name, 4e9)
        lines.append(f"{name} {role} 2090-01-01T00:00:00Z {grant.hash} {' '.join(where)}\n")
    path.write_text("".join(lines))
    path.chmod(0o600)
    return found


async def test_tokens_and_certificates_let_in_whom_the_api_lets_in(tmp_path: Path) -> None:
    """Readers, schedulers and operators may look; agents, strangers and wrong tokens may not."""
    authority = Authority(tmp_path / "pki")
    server = authority.server()
    tokens = granted(
        tmp_path / "tokens", reader=Role.READER, scheduler=Role.SCHEDULER, agent=Role.AGENT
    )
    terms = replace(
        OPEN,
        tls=Tls(server.cert, server.key, server.ca),
        admission=Admission(tokens=TokenFile(tmp_path / "tokens")),
    )
    async with web(tmp_path, terms, authority.ca) as page:
        for headers, status, reason in (
            ({}, 401, "NO_ROLE"),
            ({"authorization": "Bearer nonsense"}, 401, "BAD_TOKEN"),
            ({"authorization": f"Bearer {tokens['agent']}"}, 403, "ROLE_DENIED"),
            ({"authorization": f"Bearer {tokens['reader']}"}, 200, None),
            ({"authorization": f"Bearer {tokens['scheduler']}"}, 200, None),
            ({"cookie": f"heddle_token={tokens['reader']}"}, 200, None),
        ):
            answer = await page.get(OVERVIEW, headers=headers)
            assert (answer.status, answer.json.get("reason")) == (status, reason), headers
            shell = await page.get("/fabrics/f1", headers=headers)
            assert shell.status == status
            assert (b"Who looks?" in shell.body) is (status != 200)
            assert b"Who looks?" in shell.body or b"page.js" in shell.body
        for role, status in (
            ("reader/r", 200),
            ("scheduler/s", 200),
            ("operator/o", 200),
            ("agent/f1/l0", 403),
        ):
            shown = trusting(authority.ca, authority.role(role))
            assert (await page.get(OVERVIEW, tls=shown)).status == status, role
        with capture_logs() as logged:
            await page.get(OVERVIEW, headers={"authorization": "Bearer nonsense"})
        (denied,) = [one for one in logged if one["event"] == "call denied"]
        assert (denied["code"], denied["peer"]) == ("UNAUTHENTICATED", "127.0.0.1")


async def test_a_login_is_kept_where_no_script_and_no_other_site_has_it(tmp_path: Path) -> None:
    """The cookie is HttpOnly, Secure and of this site alone; a wrong token gets none."""
    authority = Authority(tmp_path / "pki")
    server = authority.server()
    tokens = granted(tmp_path / "tokens", reader=Role.READER)
    terms = replace(
        OPEN,
        tls=Tls(server.cert, server.key),
        admission=Admission(tokens=TokenFile(tmp_path / "tokens")),
    )
    async with web(tmp_path, terms, authority.ca) as page:
        sent = {"content-type": "application/json"}
        wrong = await page.get("/api/login", b'{"token": "heddle.reader.no"}', sent)
        assert wrong.status == 401
        assert "set-cookie" not in wrong.headers
        right = await page.get("/api/login", json.dumps({"token": tokens["reader"]}).encode(), sent)
        assert right.status == 200
        cookie = right.headers["set-cookie"].lower()
        assert all(word in cookie for word in ("httponly", "secure", "samesite=strict"))
        foreign = {"content-type": "application/x-www-form-urlencoded"}
        form = await page.get("/api/login", b"token=x", foreign)
        assert form.status == 400


async def test_a_token_taken_back_ends_the_stream(tmp_path: Path) -> None:
    """A stream ends soon after its token is taken back."""
    tokens = granted(tmp_path / "tokens", reader=Role.READER)
    admission = Admission(tokens=TokenFile(tmp_path / "tokens"))
    async with web(tmp_path, replace(OPEN, admission=admission)) as page:
        given = {"authorization": f"Bearer {tokens['reader']}"}
        stream = await asyncio.to_thread(connect, page.url + STREAM, headers=given)
        assert [(await asyncio.to_thread(event, stream)).get("event") for _ in range(2)] == [
            None,
            "overview",
        ]
        granted(tmp_path / "tokens", other=Role.READER)
        told = await asyncio.to_thread(event, stream)
        while told.get("event") == "beat":
            told = await asyncio.to_thread(event, stream)
        assert told["event"] == "refused"
        assert await asyncio.to_thread(stream.read) == b""


async def test_a_page_of_another_site_gets_nothing(tmp_path: Path) -> None:
    """A foreign name for this host, or a request from another site's page, is refused.

    Every answer carries a strict content security policy.
    """
    async with web(tmp_path) as page:
        assert (await page.get(OVERVIEW)).status == 200
        rebound = await page.get(OVERVIEW, headers={"host": "evil.example:80"})
        assert (rebound.status, rebound.json["reason"]) == (403, "FOREIGN_HOST")
        crossed = await page.get(OVERVIEW, headers={"sec-fetch-site": "cross-site"})
        assert (crossed.status, crossed.json["reason"]) == (403, "FOREIGN_SITE")
        for path in ("/", "/static/page.js", OVERVIEW, "/nothing"):
            answer = await page.get(path)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"


async def test_nothing_outside_the_pages_own_files_is_served_or_named(tmp_path: Path) -> None:
    """No path leads to other files, and no file of the page refers to another host."""
    async with web(tmp_path) as page:
        for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/", "/static/none.js"):
            assert (await page.get(path)).status == 404, path
        for name in ("page.js", "heatmap.js", "login.js", "heddle.css"):
            text = (await page.get(f"/static/{name}")).body.decode()
            assert "http:" not in text
            assert "https:" not in text
            assert "innerHTML" not in text
        first = await page.get("/static/page.js")
        again = await page.get("/static/page.js", headers={"if-none-match": first.headers["etag"]})
        assert (again.status, again.body) == (304, b"")


async def test_odd_questions_are_refused_in_words(tmp_path: Path) -> None:
    """Each odd request is refused with a status and a message, and the page goes on."""
    async with web(tmp_path) as page:
        of, sent = "/api/fabrics/f1", {"content-type": "application/json"}
        asked: list[tuple[str, bytes | None, int]] = [
            ("/api/fabrics/none/overview", None, 404),
            ("/api/fabrics/%22%3E/overview", None, 400),
            (f"{of}/switch?id=none", None, 404),
            (f"{of}/comparison?before=1&after=9", None, 404),
            (f"{of}/comparison?before=-1", None, 400),
            (f"{of}/comparison?before=99999999999999999999", None, 400),
            (f"{of}/comparison", None, 400),
            (f"{of}/plans?page=odd", None, 400),
            (f"{of}/switch?id=n0.0", None, 404),
            (f"{of}/switch", None, 400),
            (f"{of}/link?source=l0&target=none", None, 404),
            (f"{of}/loads", None, 404),
            (f"{of}/flow?id=x", None, 404),
            (f"{of}/job?id=none", None, 404),
            (f"{of}/routes?page=zzz", None, 400),
            (f"{of}/what-if", b"[]", 400),
            (f"{of}/what-if", b"{", 400),
            (f"{of}/what-if", b'{"nonsense": 1}', 400),
            (f"{of}/what-if", b'{"x": "' + b"y" * (2 << 20) + b'"}', 400),
            (f"{of}/what-if", b'{"switches": [{"node": "none", "admin_state": 2}]}', 400),
            (f"{of}/what-if", b'{"down": 1}', 400),
            (f"{of}/what-if", b'{"down": "' + b"," * 1_000_000 + b'"}', 400),
            ("/api/login", b'{"token": 1}', 400),
        ]
        for path, data, status in asked:
            answer = await page.get(path, data, sent if data is not None else {})
            assert answer.status == status, (path, answer.body)
            assert answer.json["message"], path
        assert (await page.get(OVERVIEW)).status == 200


async def test_who_comes_back_is_told_nothing_twice(tmp_path: Path) -> None:
    """A viewer that comes back with its newest id gets no overview until something changes."""
    async with web(tmp_path) as page:
        await page.s.commit_plan()
        stream = await asyncio.to_thread(connect, page.url + STREAM)
        await asyncio.to_thread(event, stream)
        newest = await asyncio.to_thread(event, stream)
        stream.close()
        back = await asyncio.to_thread(
            connect, page.url + STREAM, headers={"last-event-id": newest["id"]}
        )
        await asyncio.to_thread(event, back)
        first = await asyncio.to_thread(event, back)
        assert first.get("id") != newest["id"]
        told_down(page.s, "l0", "s0")
        link: list[dict[str, str]] = []
        while not link:
            told = await asyncio.to_thread(event, back)
            link = json.loads(told["data"])["links"]["down"] if "id" in told else []
        assert {link[0]["source"], link[0]["target"]} == {"l0", "s0"}
        back.close()


async def test_viewers_beyond_the_bound_are_told_to_come_again(tmp_path: Path) -> None:
    """Viewers over the bound get 503 until another leaves; the API answers all the while."""
    async with web(tmp_path, replace(OPEN, viewers=2)) as page:
        streams = [await asyncio.to_thread(connect, page.url + STREAM) for _ in range(2)]
        for stream in streams:
            assert stream.status == 200
            await asyncio.to_thread(event, stream)
        third = await page.get(STREAM)
        assert (third.status, third.json["reason"]) == (503, "TOO_MANY_VIEWERS")
        assert int(third.headers["retry-after"]) >= 1
        assert (await page.get(OVERVIEW)).status == 200
        await page.s.fabrics.ListFabrics(fabric_pb2.ListFabricsRequest())
        streams[0].close()
        async with asyncio.timeout(240):
            while (again := await asyncio.to_thread(connect, page.url + STREAM)).status != 200:
                again.close()
                await asyncio.sleep(BEAT_SECONDS / 10)
        again.close()
        streams[1].close()


async def test_a_thousand_viewers_are_told_of_a_lost_link(tmp_path: Path) -> None:
    """A thousand viewers all hear of a lost link, calls are answered, and all may leave at once."""
    many = Allowance(calls_per_second=0)
    async with web(tmp_path, replace(OPEN, viewers=1000, allowance=many)) as page:
        await page.s.commit_plan()
        host, _, port = page.url.removeprefix("http://").partition(":")
        asked = f"GET {STREAM} HTTP/1.1\r\nhost: {host}:{port}\r\n\r\n".encode()
        opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        for _ in range(1000):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(asked)  # at once, as a connection without a request is closed
            opened.append((reader, writer))
        async with asyncio.timeout(SECONDS):
            for reader, _ in opened:
                assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
                await reader.readuntil(b"event: overview")
            told_down(page.s, "l0", "s0")
            await page.s.fabrics.ListFabrics(fabric_pb2.ListFabricsRequest())
            for reader, _ in opened:
                await reader.readuntil(b'"down_count":1,')
        for _, writer in opened:
            writer.transport.abort()
        assert (await page.get(OVERVIEW)).status == 200


async def test_a_thousand_connections_leave_the_api_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections over the bound are closed; calls are answered, and later the page is too."""
    monkeypatch.setattr(server, "FIRST_SECONDS", 10 * PATIENCE)  # none is closed for being idle
    async with web(tmp_path, replace(OPEN, viewers=2)) as page:
        host, _, port = page.url.removeprefix("http://").partition(":")
        most = 2 * CONNECTIONS_EACH + SPARE_CONNECTIONS
        opened = [await asyncio.open_connection(host, int(port)) for _ in range(1000)]
        await page.s.fabrics.ListFabrics(fabric_pb2.ListFabricsRequest())

        def closed() -> int:
            return sum(one.at_eof() or one.exception() is not None for one, _ in opened)

        await until(lambda: closed() >= 1000 - most, "connections over the bound to be closed")
        for _, writer in opened:
            writer.close()
        async with asyncio.timeout(240):
            while True:
                with contextlib.suppress(OSError):
                    if (await page.get(OVERVIEW)).status == 200:
                        return


def test_settings_that_cannot_be_are_refused_with_the_cure(tmp_path: Path) -> None:
    """Settings that cannot work are refused with the cure.

    Such are an address that others reach without TLS, a port in use, and a file where reports are
    to be.
    """

    async def starts(terms: WebTerms) -> None:
        async with web(tmp_path, terms):
            pass

    (tmp_path / "file.html").write_text("")
    with pytest.raises(Exception, match="is no folder: name the folder that"):
        asyncio.run(starts(replace(OPEN, reports=tmp_path / "file.html")))
    with pytest.raises(Exception, match="cannot be read: File name too long; let the"):
        asyncio.run(starts(replace(OPEN, reports=tmp_path / ("x" * 300))))
    with pytest.raises(Exception, match="give --tls-cert and --tls-key"):
        asyncio.run(starts(replace(OPEN, host="0.0.0.0")))
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(Exception, match="choose another with --web-port"),
    ):
        asyncio.run(starts(replace(OPEN, port=taken.getsockname()[1])))


async def test_reports_of_a_folder_are_shown_and_nothing_else_of_it(tmp_path: Path) -> None:
    """Reports are shown by name to those who may look, and no other file can be reached."""
    folder = tmp_path / "reports"
    async with web(tmp_path) as page:
        assert (await page.get("/api/reports")).json == {"named": False, "reports": []}
        assert (await page.get("/reports/index.html")).status == 404
    tokens = granted(tmp_path / "tokens", reader=Role.READER, agent=Role.AGENT)
    admission = Admission(tokens=TokenFile(tmp_path / "tokens"))
    reader = {"authorization": f"Bearer {tokens['reader']}"}
    async with web(tmp_path, replace(OPEN, reports=folder, admission=admission)) as page:
        assert (await page.get("/api/reports", headers=reader)).json["reports"] == []
        write(folder, [held()])
        (folder / "deeper").mkdir()
        (folder / "deeper" / "x.html").write_text("deeper")
        (tmp_path / "secret.html").write_text("secret")
        listed = (await page.get("/api/reports", headers=reader)).json["reports"]
        assert {one["name"] for one in listed} == {"index.html", "remote-link.html"}
        report = await page.get("/reports/remote-link.html", headers=reader)
        assert report.body == (folder / "remote-link.html").read_bytes()
        assert "default-src 'none'" in report.headers["content-security-policy"]
        for odd in ("..%2fsecret.html", "%2e%2e/secret.html", "deeper%2fx.html", "junit.xml",
                    "remote-link.json", "none.html", "%00.html", "a" * 5000 + ".html"):  # fmt: skip
            assert (await page.get(f"/reports/{odd}", headers=reader)).status == 404, odd
        for token, status in (("nonsense", 401), (tokens["agent"], 403)):
            for path in ("/api/reports", "/reports/remote-link.html"):
                answer = await page.get(path, headers={"authorization": f"Bearer {token}"})
                assert answer.status == status


async def test_who_changed_what_is_told_to_operators_alone(tmp_path: Path) -> None:
    """Operators see the changes of one fabric, newest first, each with its request id.

    Readers and schedulers are refused.
    """
    tokens = granted(
        tmp_path / "tokens", reader=Role.READER, scheduler=Role.SCHEDULER, operator=Role.OPERATOR
    )
    admission = Admission(tokens=TokenFile(tmp_path / "tokens"))
    async with web(tmp_path, replace(OPEN, admission=admission)) as page:
        await page.s.put_fabric(name="f2")
        for asked, fabric, node in (("r1", "f1", "s0"), ("r2", "f2", "s0"), ("r3", "f1", "s1")):
            request = fabric_pb2.SetSwitchStateRequest(
                fabric=f"fabrics/{fabric}", node=node, admin_state=common_pb2.STATE_DRAINED
            )
            metadata = [("x-request-id", asked)]
            await page.s.fabrics.SetSwitchState(request, metadata=metadata)
        told = {who: await page.get("/api/fabrics/f1/changes",
                                    headers={"authorization": f"Bearer {token}"})
                for who, token in tokens.items()}  # fmt: skip
        for who in ("reader", "scheduler"):
            assert (told[who].status, told[who].json["reason"]) == (403, "ROLE_DENIED"), who
        changes = told["operator"].json["changes"]
        assert [(one["request"], one["action"], one["name"]) for one in changes] == [
            ("r3", "set_switch_state", "fabrics/f1/switches/s1"),
            ("r1", "set_switch_state", "fabrics/f1/switches/s0"),
            ("", "put_fabric", "fabrics/f1"),
        ]


async def test_a_store_lost_before_the_newest_plan_was_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the store is lost, the last overview comes again, marked as past, until it is back."""
    async with web(tmp_path) as page:
        stream = await asyncio.to_thread(connect, page.url + STREAM)
        told = await asyncio.to_thread(event, stream)
        while told.get("event") != "overview":
            told = await asyncio.to_thread(event, stream)

        async def away(*_: object) -> None:
            raise Unavailable("the store is away", retry_after=1.0)

        monkeypatch.setattr(page.s.store, "committed", away)
        monkeypatch.setattr(page.s.store, "stale_for", lambda: 7.0)
        overview = json.loads(told["data"])
        for undone, stale in ((False, 7.0), (True, 0.0)):
            if undone:
                monkeypatch.undo()
            while overview["stale_seconds"] != stale:
                told = await asyncio.to_thread(event, stream)
                overview = json.loads(told["data"]) if told.get("event") == "overview" else overview
            past = any("of the past" in one for one in overview["verdict"]["sentences"])
            assert (past, overview["fabric"]) == (not undone, "f1")
        stream.close()
