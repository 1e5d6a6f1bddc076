"""Targets: every file format that Heddle reads."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heddle_agent.peers.keys import read_keys
from heddle_agent.peers.saved import PeerFile
from heddle_agent.table import FenceFile
from heddle_controller.cli.audit import read_export
from heddle_controller.cli.failure import Failure
from heddle_controller.importers import load_fabric
from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import (
    fabric_document,
    load_fabric_file,
    parse_fabric,
)
from heddle_controller.model.files.flows_file import load_demands
from heddle_controller.model.files.plan_file import load_plan, save_plan
from heddle_controller.serve.codec import audit as audit_codec
from heddle_controller.serve.security.caller import Caller, Role
from heddle_controller.serve.security.certificates import Mapper, Rule, read_rules
from heddle_controller.serve.security.files import TokenFile, new_token, read_grants
from heddle_controller.state.audit import AuditBroken, AuditEntry, AuditRecord, Mark, verify
from heddle_controller.traffic.jobs_file import load_jobs
from heddle_controller.traffic.traces import load_trace
from heddle_emulator.campaign.campaign import load_campaign
from heddle_emulator.drill.load import load_scenario
from tests.fuzz.target import ROOT, Target, as_json, check, of_file, scratch
from tests.property.test_traffic_garbage import AICB, GRAPH, JOBS, SIMAI, TABLE
from tests.support.store_samples import clos, plan_of

FABRIC = clos()
FLOWS = b"""flow,src,dst,gbps,job,phase,qps,class
f0,n0.0,n1.0,400,j,,4,bandwidth
f1,n0.1,n1.1,1.5,j,p,1,latency
"""
WORDS = tuple(
    word.encode()
    for word in (
        '"id"', '"kind"', '"nic"', '"leaf"', '"spine"', '"gbps"', '"source"', '"target"', '"key"',
        '"state"', '"down"', "drained", "n0.0", "l0", "s0", "hosts", "h[0-9]", "h[9-0]", "tp: 8",
        "bytes: 1GiB", "all_reduce", "CommGroup.tp_group", "fabric:", "timeline:", "expect:",
    )
)  # fmt: skip


def links_of(fabric: Fabric) -> list[tuple[object, ...]]:
    """Return every link as ids of its ends, key and speed, sorted."""
    links, ids = fabric.structure.links, fabric.structure.nodes.ids
    columns = (links.a.tolist(), links.b.tolist(), links.key, links.gbps.tolist())
    return sorted(
        (ids[a], ids[b], str(key), gbps) for a, b, key, gbps in zip(*columns, strict=True)
    )


def judge_fabric(fabric: Fabric, _content: bytes) -> None:
    """Check that a fabric is sound, and the same after it is written and read again."""
    ids = fabric.structure.nodes.ids
    check(len(set(ids)) == len(ids) > 0, "ids are unique")
    check(all(ids), "no id is empty")
    for a, b, _, gbps in links_of(fabric):
        check(a != b, "no link ends where it begins")
        check(isinstance(gbps, float) and math.isfinite(gbps) and gbps > 0, f"speed is {gbps}")
    named = [(*sorted((str(a), str(b))), key) for a, b, key, _ in links_of(fabric)]
    check(len(set(named)) == len(named), "parallel links have keys of their own")
    again = parse_fabric(fabric_document(fabric), "again")
    check(links_of(again) == links_of(fabric), "links survive a round trip")
    check(again.structure.nodes.ids == ids, "nodes survive a round trip")


def judge_flows(demands: Any, content: bytes) -> None:
    """Check the flows against what another reader of CSV makes of the same bytes."""
    rows = list(csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline="")))
    check(len(demands) <= len(rows), "no flow comes from nowhere")
    check(len(set(demands.ids)) == len(demands.ids), "ids are unique")
    for gbps, qps in zip(demands.gbps.tolist(), demands.qps.tolist(), strict=True):
        check(math.isfinite(gbps) and gbps > 0, f"rate is {gbps}")
        check(qps >= 1, f"{qps} QPs")
    for source, destination in zip(demands.source, demands.destination, strict=True):
        check(source != destination, "a flow has two ends")


def judge_jobs(jobs: Any, _: bytes) -> None:
    """Check that every job could run."""
    for job in jobs:
        parallel = job.parallelism
        check(job.name and job.hosts and min(job.counts) >= 1, "a job has a name, hosts, GPUs")
        check(len(set(job.hosts)) == len(job.hosts), "no host twice")
        ranks = job.rank_count
        sizes = [size or 1 for size in (parallel.tp, parallel.pp, parallel.cp, parallel.dp)]
        check(ranks % math.prod(sizes) == 0, f"{ranks} ranks for {sizes}")
        check(all(one.bytes > 0 for one in job.collectives), "collectives carry something")
        check(math.isfinite(job.priority) and job.priority >= 0, f"priority {job.priority}")
        check(job.qps >= 1, f"{job.qps} QPs")


def judge_trace(trace: Any, _: bytes) -> None:
    """Check that all sizes can be sent."""
    check(all(one.bytes > 0 for one in trace.collectives), "collectives carry something")


def _plan() -> tuple[Callable[[bytes], bool], list[bytes]]:
    plan = plan_of(FABRIC)
    path = scratch() / "good-plan.json"
    save_plan(plan, path)
    good = path.read_bytes()

    def judge(read: Any, _: bytes) -> None:
        check(read.flows.ids == plan.flows.ids, "a plan is of its flows")
        ends = read.fabric.structure.nodes.ids
        check(set(read.unrouted) <= set(range(len(read.flows.ids))), "reasons are of flows")
        check(len(ends) == FABRIC.node_count, "a plan is of its fabric")
        check(int(read.paths.first[-1]) == len(read.paths.arcs), "paths have their arcs")

    run = of_file(lambda p: load_plan(p, FABRIC, plan.flows), InputError, judge, ".json")
    return run, [good]


def _trail() -> tuple[Callable[[bytes], bool], list[bytes]]:
    """Check that an export that verifies up to the noted mark is the one that was exported."""
    mark, records, lines = Mark(), [], [as_json({"anchor": str(Mark())})]
    for n in range(4):
        entry = AuditEntry(1000.0 + n, "operator ann", f"r{n}", "submit_job", f"j{n}", "", "{}")
        mark = mark.follow(entry.content())
        records.append(AuditRecord(mark.number, mark.hash, entry))
        lines.append(_line(records[-1]))
    good = b"\n".join(lines)

    def run(content: bytes) -> bool:
        path = scratch() / "trail.jsonl"
        path.write_bytes(content)
        try:
            start, read = read_export(path)
            last = verify(start, read, mark)
        except (Failure, AuditBroken):
            return False
        if last == mark and start == Mark():
            check(read == records, "a chain that ends at the noted mark is the one noted")
        return True

    return run, [good]


def _line(record: AuditRecord) -> bytes:
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415 - of one corpus

    return as_json(
        MessageToDict(audit_codec.audit_record_to_pb(record), preserving_proto_field_name=True)
    )


def _tokens() -> tuple[Callable[[bytes], bool], list[bytes]]:
    """Check that nobody is let in by anything but the token itself."""
    path = scratch() / "tokens"
    token, grant = new_token(Caller(Role.SCHEDULER, ""), "slurm", 4e9)
    path.write_text(grant.line())
    tokens = TokenFile(path)

    def run(content: bytes) -> bool:
        text = content.decode(errors="replace")
        found = tokens.caller(text)
        check((found is not None) == (text == token), "only the token itself lets in")
        return found is not None

    return run, [token.encode()]


def _names() -> tuple[Callable[[bytes], bool], list[bytes]]:
    """Check that only the whole URI or the rule's whole name makes an operator's certificate."""
    mapper = Mapper(rules=(Rule("cn", "netops", Caller(Role.OPERATOR, "")),))

    def run(content: bytes) -> bool:
        text = content.decode(errors="replace")
        uri = mapper.caller({"uri": [text]})
        if uri.role is Role.OPERATOR:
            name = text.removeprefix("spiffe://heddle/operator/")
            check(name != text and name and "/" not in name, "an operator's URI is whole")
        check(uri.role is not Role.LOCAL, "nobody is local by a certificate")
        named = mapper.caller({"cn": [text]})
        check((named.role is Role.OPERATOR) == (text == "netops"), "a name is whole")
        return uri.role is not Role.NOBODY

    return run, [b"spiffe://heddle/operator/ann", b"spiffe://heddle/agent/f1/l%2F0", b"netops"]


def _owned(make: Callable[[Path], Any], good: bytes, name: str) -> Target:
    return Target(name, of_file(lambda path: make(path).load(), ValueError), [good])


def _drills() -> list[bytes]:
    return [path.read_bytes() for path in sorted((ROOT / "tests" / "drills").glob("*/*.yaml"))]


def _campaigns() -> list[bytes]:
    found = [text for text in _drills() if text.startswith(b"campaign:")]
    small = b"""campaign: example
fabric: {clos: {leaves: 2, spines: 2, nics_per_leaf: 2}}
demands:
  - {pattern: permutation, qps: 4}
draw: published
failures: 30
seed: 7
mend: 3d
notices: datagrams
"""
    return [*found, small]


def _traffic() -> list[Target]:
    """Return targets for what is planned: fabrics, flows, jobs, traces, plans."""
    fabric = of_file(load_fabric_file, InputError, judge_fabric, ".json")
    flows = of_file(load_demands, InputError, judge_flows, ".csv")
    jobs = of_file(load_jobs, InputError, judge_jobs, ".yaml")
    trace = of_file(load_trace, InputError, judge_trace)
    imported = of_file(load_fabric, InputError, judge_fabric)
    small = [as_json(fabric_document(clos(2, 1, 1)))]
    golden = (ROOT / "tests/golden/fabric.json").read_bytes()
    return [
        Target("fabric.json", fabric, small, words=WORDS, weight=2),
        Target("flows.csv", flows, [FLOWS], words=WORDS, weight=2),
        Target("jobs.yaml", jobs, [JOBS], words=WORDS, weight=0.5),
        Target("plan.json", *_plan(), words=WORDS),
        Target("AICB trace", trace, [AICB, SIMAI], words=WORDS, weight=2),
        Target("imported fabric", imported, [TABLE, GRAPH, golden[:4096]], words=WORDS),
    ]


def _played() -> list[Target]:
    """Return targets for what the emulator plays."""
    drill = of_file(load_scenario, InputError, suffix=".yaml")
    campaign = of_file(load_campaign, InputError, suffix=".yaml")
    return [
        Target("drill", drill, _drills(), words=WORDS, weight=0.1),
        Target("campaign", campaign, _campaigns(), words=WORDS, weight=0.1),
    ]


def _secured() -> list[Target]:
    """Return targets for files and names that decide who gets in, and for the audit export."""
    line = new_token(Caller(Role.AGENT, "", "f1", "l0"), "l0", 4e9)[1].line().encode()
    grants, rules = of_file(read_grants, InputError), of_file(read_rules, InputError)
    roles = b"cn slurm-* scheduler # a\nou netops operator\ndns l0 agent f1 l0\n"
    return [
        Target("audit export", *_trail()),
        Target("tokens file", grants, [line, b"# c\n" + line + b"\n"], weight=2),
        Target("roles file", rules, [roles], weight=2),
        Target("bearer token", *_tokens(), weight=2),
        Target("certificate names", *_names(), weight=2),
    ]


def _on_a_switch() -> list[Target]:
    """Return targets for what an agent reads from its disk."""
    owner = {"fabric": "fabrics/f1", "switch": "l0"}
    memory = owner | {"boot": 5, "peers": {"s0": "10.0.0.1:7402"}, "keys": ["ab" * 32]}
    fence = owner | {"highest_epoch": 3, "generation": 7}
    keys = of_file(read_keys, ValueError)
    return [
        Target("peer keys", keys, [b"# k\n" + b"ab" * 32 + b"\n"], weight=2),
        _owned(lambda at: PeerFile(at, **owner), as_json(memory), "peer file"),
        _owned(lambda at: FenceFile(at, **owner), as_json(fence), "agent state"),
    ]


def targets() -> list[Target]:
    """Return all targets of this module."""
    return [*_traffic(), *_played(), *_secured(), *_on_a_switch()]
