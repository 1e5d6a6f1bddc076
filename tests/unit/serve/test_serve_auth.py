from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
from grpc import aio

from heddle.v1 import (
    agent_pb2,
    audit_pb2,
    demand_pb2,
    doctor_pb2,
    fabric_pb2,
    overlay_pb2,
    placement_pb2,
    plan_pb2,
)
from heddle_controller.model.errors import InputError
from heddle_controller.serve.errors import Refusal
from heddle_controller.serve.interceptors.around import Method
from heddle_controller.serve.interceptors.auth import Admission, Allowance, Auth, Budget
from heddle_controller.serve.security.caller import (
    PERMISSIONS,
    Caller,
    Role,
    current_caller,
    may_call,
)
from heddle_controller.serve.security.certificates import Mapper, Rule, names_of, read_rules
from heddle_controller.serve.security.files import TokenFile, new_token

PROTOS: tuple[ModuleType, ...] = (
    agent_pb2,
    audit_pb2,
    demand_pb2,
    doctor_pb2,
    fabric_pb2,
    overlay_pb2,
    placement_pb2,
    plan_pb2,
)
WORK_SERVICES = {"heddle.v1.PlacementService", "heddle.v1.DemandService"}
METHOD = Method("heddle.v1.FabricService", "PutFabric", streams=False)
READ = Method("heddle.v1.FabricService", "GetFabric", streams=False)


class Call:
    """The part of gRPC's context that authentication uses."""

    def __init__(
        self, peer: str, about: Mapping[str, list[bytes]] | None = None, token: str = ""
    ) -> None:
        self._peer = peer
        self._about = about or {}
        self._metadata = [("authorization", f"Bearer {token}")] if token else []
        self.status: Any = None

    def peer(self) -> str:
        """Return the caller's address."""
        return self._peer

    def auth_context(self) -> Mapping[str, list[bytes]]:
        """Return what the transport knows."""
        return self._about

    def invocation_metadata(self) -> list[tuple[str, str]]:
        """Return what the client sent."""
        return self._metadata

    async def abort_with_status(self, status: Any) -> None:
        """Record the status and raise, as gRPC does."""
        self.status = status
        raise PermissionError


async def let_in(auth: Auth, method: Method, call: Any) -> Caller:
    """Return the caller that the rest of the call sees."""

    async def rest() -> Caller:
        return current_caller()

    caller = await auth.around(method, call, rest)
    assert isinstance(caller, Caller)
    return caller


def certificate(*uris: str, **names: str) -> dict[str, list[bytes]]:
    """Return the auth context of a verified certificate."""
    keys = {"cn": "x509_common_name", "dns": "peer_dns", "subject": "x509_subject"}
    told = {keys[name]: [value.encode()] for name, value in names.items()}
    uri = {"peer_uri": [uri.encode() for uri in uris]} if uris else {}
    return {"transport_security_type": [b"ssl"], **uri, **told}


@pytest.mark.parametrize(
    ("peer", "insecure", "admitted"),
    [
        ("ipv4:127.0.0.1:5", False, True),
        ("ipv6:%5B::1%5D:5", False, True),
        ("unix:/run/heddle", False, True),
        ("ipv4:10.0.0.7:5", False, False),
        ("ipv4:10.0.0.7:5", True, True),
    ],
)
async def test_plain_text_from_other_hosts_is_turned_away(
    peer: str, *, insecure: bool, admitted: bool
) -> None:
    """Only --insecure admits plain text from other hosts, at any address of the server."""
    call: Any = Call(peer, {"transport_security_type": [b"insecure"]})
    auth = Auth(Admission(insecure=insecure))
    if admitted:
        assert (await let_in(auth, METHOD, call)).role is Role.LOCAL
        return
    with pytest.raises(PermissionError):
        await let_in(auth, METHOD, call)
    assert call.status.code.name == "UNAUTHENTICATED"
    assert "--insecure" in call.status.details


async def test_a_call_that_has_ended_is_not_denied() -> None:
    """A caller that gave up has no address any more, and is not taken for one without TLS."""
    call: Any = Call("", {})
    with pytest.raises(asyncio.CancelledError):
        await let_in(Auth(Admission()), METHOD, call)
    assert call.status is None


async def test_a_certificate_without_a_role_may_do_nothing() -> None:
    """Being verified is not enough, even on this host. A role that lacks the method is denied."""
    auth = Auth(Admission(insecure=True))
    for about, method, code in (
        (certificate(cn="somebody"), READ, "UNAUTHENTICATED"),
        (certificate("spiffe://other/operator/ann"), READ, "UNAUTHENTICATED"),
        (certificate("spiffe://heddle/king/ann"), READ, "UNAUTHENTICATED"),
        (certificate("spiffe://heddle/operator/ann/more"), READ, "UNAUTHENTICATED"),
        (certificate("spiffe://heddle/local/ann"), READ, "UNAUTHENTICATED"),
        (certificate("spiffe://heddle/reader/ann"), METHOD, "PERMISSION_DENIED"),
        (certificate("spiffe://heddle/agent/f1/l0"), READ, "PERMISSION_DENIED"),
    ):
        call: Any = Call("ipv4:127.0.0.1:5", about)
        with pytest.raises(PermissionError):
            await let_in(auth, method, call)
        assert call.status.code.name == code, about
    call = Call("ipv4:10.0.0.7:5", certificate("spiffe://heddle/operator/ann"))
    caller = await let_in(auth, METHOD, call)
    assert str(caller) == "operator spiffe://heddle/operator/ann"


def test_every_method_has_its_row() -> None:
    """Every row has a method, too. A renamed method would otherwise be refused to everybody."""
    methods = {
        f"{service.full_name}/{method.name}"
        for module in PROTOS
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    own = {name for name in PERMISSIONS if name.startswith("heddle.")}
    assert methods == own
    assert not any(may_call(role, "heddle.v1.FabricService", "New") for role in Role)


def test_what_roles_may_do() -> None:
    """NOBODY may not even read, readers change nothing, and schedulers change only work.

    Of Heddle's methods, agents may call ``Session`` alone.
    """
    changing = {"Put", "Set", "Submit", "Update", "Delete", "Report"}
    for name, roles in PERMISSIONS.items():
        service, method = name.split("/")
        if not service.startswith("heddle."):
            continue
        assert Role.NOBODY not in roles
        assert (Role.AGENT in roles) == (method == "Session")
        if any(method.startswith(word) for word in changing):
            assert Role.READER not in roles
            assert (Role.SCHEDULER in roles) == (service in WORK_SERVICES)
            assert Role.OPERATOR in roles


def test_hosts_read_and_tell_of_their_own_nics_alone() -> None:
    """Apart from health, a host may call nothing else.

    Another host, another fabric and NICs by name are refused.
    """
    caller = Mapper().caller({"uri": ["spiffe://heddle/host/f1/node-17"]})
    assert (caller.role, caller.fabric, caller.speaks_for) == (Role.HOST, "f1", "node-17")
    mine = {name for name, roles in PERMISSIONS.items() if Role.HOST in roles}
    assert {name for name in mine if name.startswith("heddle.v1.")} == {
        "heddle.v1.PlanService/GetJobPorts",
        "heddle.v1.PlanService/WatchJobPorts",
        "heddle.v1.PlanService/ReportPortPaths",
    }
    assert caller.may_report_ports("f1", "node-17")
    assert not caller.may_report_ports("f1", "node-18")
    assert not caller.may_report_ports("f2", "node-17")
    assert caller.may_read_ports("f1", ["node-17"], [])
    for fabric, hosts, nics in (
        ("f2", ["node-17"], []),
        ("f1", ["node-18"], []),
        ("f1", ["node-17", "node-18"], []),
        ("f1", [], []),
        ("f1", [], ["n0"]),
        ("f1", ["node-17"], ["n0"]),
    ):
        assert not caller.may_read_ports(fabric, hosts, nics)
    assert Caller(Role.READER, "ann").may_read_ports("f1", [], [])
    assert not caller.may_speak_for("f1", "node-17")


def test_agents_speak_for_their_own_switch() -> None:
    """Characters that a URI may not contain are percent-encoded in ids."""
    caller = Mapper().caller({"uri": ["spiffe://heddle/agent/f1/leaf%2F0%20a"]})
    assert (caller.role, caller.fabric, caller.speaks_for) == (Role.AGENT, "f1", "leaf/0 a")
    assert caller.may_speak_for("f1", "leaf/0 a")
    assert not caller.may_speak_for("f1", "leaf")
    assert not caller.may_speak_for("f2", "leaf/0 a")
    assert not Caller(Role.OPERATOR, "ann").may_speak_for("f1", "leaf/0 a")


@pytest.mark.parametrize(
    "second", ["reader/ann", "operator/bob", "agent/f1/leaf0", "operator/", "x"]
)
def test_a_certificate_says_one_role(second: str) -> None:
    """A certificate with two roles is refused, whichever comes first."""
    one, other = "spiffe://heddle/operator/ann", f"spiffe://heddle/{second}"
    for uris in ([one, other], [other, one]):
        shown = Admission().shown(cast("Any", Call("ipv4:10.0.0.9:1", certificate(*uris))))
        with pytest.raises(Refusal, match="names two roles") as caught:
            Admission().judge(shown)
        assert caught.value.reason == "TWO_ROLES"
    for harmless in ([one, one], [one, "spiffe://elsewhere/reader/x"], [one, "https://x.org"]):
        assert Mapper().caller({"uri": harmless}).role is Role.OPERATOR


def test_other_certificates_by_rules(tmp_path: Path) -> None:
    """Rules match CN, OU and DNS name, and the first that matches counts.

    A URI of Heddle's comes before all rules.
    """
    path = tmp_path / "roles"
    path.write_text(
        "# of the old authority\n\nou netops operator\ncn slurm-* scheduler  # both clusters\n"
        "dns leaf0.dc1 agent f1 leaf0\n"
    )
    mapper = Mapper("fabric.example.org", read_rules(path))

    def role(*uris: str, **names: str) -> Role:
        return mapper.caller(names_of(certificate(*uris, **names))).role

    assert role(cn="slurm-a", subject="CN=slurm-a,OU=batch,O=x") is Role.SCHEDULER
    assert role(cn="ann", subject="CN=ann,OU=people+OU=netops") is Role.OPERATOR
    assert role(cn="x", dns="leaf0.dc1") is Role.AGENT
    assert role(cn="not-slurm-a") is Role.NOBODY
    assert role("spiffe://fabric.example.org/reader/x", cn="slurm-a") is Role.READER
    assert role("spiffe://heddle/reader/x") is Role.NOBODY


@pytest.mark.parametrize(
    "subject",
    [
        r"CN=a\,OU\=netops,O=x",
        r"CN=a\2COU=netops",
        r"O=OU=netops",
        r"CN=a\\\,OU=netops",
        r'CN="OU=netops"',
    ],
)
def test_a_name_cannot_pretend_to_be_a_unit(subject: str) -> None:
    """Separators inside a value are escaped and remain part of it."""
    mapper = Mapper(rules=(Rule("ou", "netops", Caller(Role.OPERATOR, "")),))
    assert mapper.caller(names_of(certificate(subject=subject))).role is Role.NOBODY


def test_rules_that_are_none(tmp_path: Path) -> None:
    """Each line is named, with what is wrong with it."""
    path = tmp_path / "roles"
    path.write_text("cn a\nwho b operator\ncn c king\ncn d agent\ncn e reader f1\n")
    with pytest.raises(InputError) as found:
        read_rules(path)
    assert [problem.record for problem in found.value.problems] == [
        f"line {n}" for n in range(1, 6)
    ]


def test_tokens(tmp_path: Path) -> None:
    """A token is valid until it expires or its line is removed. No other text is accepted."""
    path, clock = tmp_path / "tokens", [1000.0]
    token, grant = new_token(Caller(Role.SCHEDULER, ""), "slurm", 2000.0)
    other, theirs = new_token(Caller(Role.AGENT, "", "f1", "l0"), "l0", 9000.0)
    path.write_text(f"# ours\n{grant.line()}\n{theirs.line()}\n")
    path.chmod(0o600)
    assert token not in path.read_text()
    assert token.rpartition(".")[2] not in path.read_text()
    tokens = TokenFile(path, lambda: clock[0])
    assert str(tokens.caller(token)) == "scheduler token slurm"
    found = tokens.caller(other)
    assert found is not None
    assert found.may_speak_for("f1", "l0")
    last = "A" if token[-1] != "A" else "B"
    for wrong in (
        "",
        "slurm",
        token[:-1],
        token[:-1] + last,
        token + "x",
        other + "é",
        "heddle.a.b",
    ):
        assert tokens.caller(wrong) is None
    clock[0] = 2000.0
    assert tokens.caller(token) is None
    assert tokens.caller(other) is not None
    path.write_text("")
    os.utime(path, ns=(time.time_ns(), time.time_ns() + 1))
    assert tokens.caller(other) is None


def test_a_broken_file_of_tokens_lets_nobody_in(tmp_path: Path) -> None:
    """At the start the file is refused. Later no token is valid until it is repaired."""
    path = tmp_path / "tokens"
    token, grant = new_token(Caller(Role.READER, ""), "r", time.time() + 100)
    path.write_text(grant.line())
    tokens = TokenFile(path)
    assert tokens.caller(token) is not None
    path.write_text(grant.line() + "\nx reader never nothing\n")
    assert tokens.caller(token) is None
    with pytest.raises(InputError, match="line 2"):
        TokenFile(path)
    path.write_text(grant.line() + "\n")
    assert tokens.caller(token) is not None
    path.chmod(0o666)
    with pytest.raises(InputError, match="chmod"):
        TokenFile(path)


@pytest.mark.parametrize(
    ("peer", "secure", "taken"),
    [
        ("ipv4:127.0.0.1:5", False, True),
        ("ipv4:10.0.0.7:5", False, False),
        ("ipv4:10.0.0.7:5", True, True),
    ],
)
def test_tokens_over_plain_text(tmp_path: Path, peer: str, *, secure: bool, taken: bool) -> None:
    """Tokens are accepted from this host only, even with --insecure: elsewhere others read them."""
    path = tmp_path / "tokens"
    token, grant = new_token(Caller(Role.SCHEDULER, ""), "slurm", time.time() + 100)
    path.write_text(grant.line())
    admission = Admission(insecure=True, tokens=TokenFile(path))
    about = {"transport_security_type": [b"ssl" if secure else b"insecure"]}
    call = cast("Any", Call(peer, about, token))
    if taken:
        assert admission.judge(admission.shown(call)).role is Role.SCHEDULER
        return
    with pytest.raises(Refusal, match="others can read it"):
        admission.judge(admission.shown(call))


def test_a_bad_token_is_not_forgiven_for_being_local(tmp_path: Path) -> None:
    """A caller that shows a token is judged by the token."""
    path = tmp_path / "tokens"
    path.write_text("")
    for admission in (Admission(), Admission(tokens=TokenFile(path))):
        shown = admission.shown(cast("Any", Call("ipv4:127.0.0.1:5", token="x")))
        with pytest.raises(Refusal, match="unknown or has expired"):
            admission.judge(shown)


class EndedCall(Call):
    """A call that gRPC has released. Asking it anything more would crash gRPC."""

    ended = False

    def __getattribute__(self, name: str) -> Any:
        """Fail for anything that is not safe on an ended call."""
        if name in {"peer", "auth_context", "invocation_metadata"} and self.ended:
            pytest.fail(f"{name} of a call that has ended crashes gRPC")
        return super().__getattribute__(name)

    async def abort_with_status(self, status: Any) -> None:
        """Raise, as gRPC does."""
        raise aio.AbortError(status)


async def test_a_stream_that_has_ended_is_not_asked_for_its_peer(tmp_path: Path) -> None:
    """Looking at the open streams reads nothing from a call, because it may just have ended."""
    path = tmp_path / "tokens"
    token, grant = new_token(Caller(Role.READER, ""), "noc", time.time() + 100)
    path.write_text(grant.line())
    auth = Auth(Admission(tokens=TokenFile(path)))
    watch = Method("heddle.v1.FabricService", "WatchFabric", streams=True)
    call = EndedCall("ipv4:127.0.0.1:5", token=token)

    begun = asyncio.Event()

    async def held() -> None:
        call.ended = True
        begun.set()
        await asyncio.Event().wait()

    holder = asyncio.create_task(auth.around(watch, cast("Any", call), held))
    await begun.wait()
    await auth.standing.look()
    assert not holder.done()
    path.write_text("")
    os.utime(path, (1, 1))
    await auth.standing.look()
    with pytest.raises(asyncio.CancelledError):
        await holder


def test_budget() -> None:
    """A burst is allowed, then the rate. The returned wait suffices, and clients are separate."""
    clock = [0.0]
    budget = Budget(Allowance(10.0, 5.0, 2), lambda: clock[0], remembered=2)
    assert [budget.call("a") for _ in range(5)] == [0.0] * 5
    wait = budget.call("a")
    assert wait == pytest.approx(0.1)
    assert budget.call("b") == 0.0
    clock[0] += wait
    assert budget.call("a") == 0.0
    assert [budget.open("a") for _ in range(3)] == [True, True, False]
    budget.close("a")
    assert budget.open("a")
    for stranger in ("c", "d", "e"):
        budget.call(stranger)
    assert not budget.open("a")  # a client with open streams is not forgotten
    assert Budget(Allowance(0.0, 1.0, 0), lambda: 0.0).call("x") == 0.0
