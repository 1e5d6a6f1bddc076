from __future__ import annotations

import zlib
from dataclasses import fields, replace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from heddle_controller.state.codec.container import LEVEL, MAGIC, DamagedError, pack, unpack
from heddle_controller.state.codec.intent import (
    pack_demands,
    pack_structure,
    parse_facts,
    parse_record,
    unpack_demands,
    unpack_structure,
)
from heddle_controller.state.codec.plans import PlanPacker, unpack_plan
from heddle_controller.state.records import JobFacts, JobRecord, JobState
from tests.support.store_samples import clos, demands, job, plain, plan_of, program_of

columns = st.dictionaries(
    st.text(max_size=5),
    arrays(np.int64, st.integers(0, 20)) | arrays(np.float64, st.integers(0, 20)),
    max_size=4,
)


@given(columns, st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3))
def test_round_trip(given_columns: dict[str, Any], meta: dict[str, str]) -> None:
    """Packed values and types come back, including NaN."""
    got_meta, got = unpack(pack(meta, given_columns))
    assert got_meta == meta
    assert list(got) == list(given_columns)
    for name, column in given_columns.items():
        assert got[name].dtype == column.dtype
        np.testing.assert_array_equal(got[name], column)


def test_small_numbers_take_little_room() -> None:
    """A column of small integers takes one byte each."""
    random = np.random.default_rng(1).integers(0, 256, 10_000)
    assert len(pack({}, {"c": random - 128})) < 10_500


@given(st.integers(0, 10_000), st.integers(1, 255))
@example(791, 157)
def test_damage_is_told(place: int, change: int) -> None:
    """A changed byte is noticed, except where it carries no data."""
    whole = pack({"a": 1}, {"c": np.arange(50), "d": np.ones(3)})
    packed = bytearray(whole)
    packed[place % len(packed)] ^= change
    try:
        found = unpack(bytes(packed))
    except DamagedError:
        return
    assert plain(found) == plain(unpack(whole))  # such as the compression level in zlib's header


@given(st.binary(max_size=60))
def test_garbage_is_refused(garbage: bytes) -> None:
    """Bytes of any origin are refused as damaged, with or without the magic number."""
    for content in (garbage, MAGIC + garbage, MAGIC + zlib.compress(garbage, LEVEL)):
        with pytest.raises(DamagedError):
            unpack(content)


@pytest.mark.parametrize(
    "listed",
    [
        [["c", "object", 1]],
        [["c", "int64", 9]],
        [["c", "int64", -1]],
        [["c", "int8", 1]],
        [["c", "int64"]],
        [[["c"], "int64", 1]],
        5,
    ],
)
def test_headers_that_lie_are_refused(listed: Any) -> None:
    """A header that promises other columns than follow is damage."""
    header = orjson.dumps({"meta": {}, "columns": listed})
    raw = len(header).to_bytes(4, "big") + header + bytes(8)
    with pytest.raises(DamagedError):
        unpack(MAGIC + zlib.compress(raw))


def test_a_header_without_its_parts_is_refused() -> None:
    """A header without metadata is damage, too."""
    header = orjson.dumps({"columns": []})
    with pytest.raises(DamagedError):
        unpack(MAGIC + zlib.compress(len(header).to_bytes(4, "big") + header))


def test_structure_round_trip() -> None:
    """Nodes and links come back in the same rows with all fields.

    The name is the content's digest.
    """
    structure = clos(3, 2, 2).structure
    packed = pack_structure(structure, "test")
    back = unpack_structure(packed.body, packed.digest)
    assert plain(back) == plain(packed.structure) == plain(structure)
    assert pack_structure(back, "test").digest == packed.digest
    with pytest.raises(DamagedError, match="another content"):
        unpack_structure(packed.body, "0" * 64)
    with pytest.raises(DamagedError):
        unpack_structure(packed.body[:-9], packed.digest)


def test_plan_round_trip() -> None:
    """A plan and its program come back on the structure that they were made for."""
    plan = plan_of(clos())
    program = program_of(plan, 3, 7, 9)
    back = unpack_plan(PlanPacker().pack(plan, program), plan.fabric.structure)
    assert plain(back) == plain((plan, program))
    with pytest.raises(DamagedError):
        unpack_plan(pack({}, {}), plan.fabric.structure)


def test_bytes_of_flows_come_back() -> None:
    """Unknown sizes, which are infinite, come back too."""
    plan = plan_of(clos())
    plan = replace(plan, flows=replace(plan.flows, bytes=np.array([1024.0, np.inf])))
    back = unpack_plan(PlanPacker().pack(plan, program_of(plan, 3, 7, 9)), plan.fabric.structure)[0]
    assert back.flows.bytes.tolist() == [1024.0, np.inf]


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_in_many_pieces(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut anywhere, and with pieces remembered from an earlier plan, every column comes back."""
    random = np.random.default_rng(seed)
    monkeypatch.setattr("heddle_controller.state.codec.plans.FLOWS_A_PIECE", 1 + seed)
    monkeypatch.setattr("heddle_controller.state.codec.plans.NODES_A_PIECE", 1 + seed)
    plan = plan_of(clos(4, 3, 4))
    program, packer = program_of(plan, 3, 7, 9), PlanPacker()
    for _ in range(3):
        rows = np.flatnonzero(random.random(len(program.entries)) < 0.8)
        program = replace(program, entries=program.entries.take(rows))
        packed = packer.pack(plan, program)
        assert plain(unpack_plan(packed, plan.fabric.structure)) == plain((plan, program))
        primary = program.entries.primary + (random.random(len(program.entries)) < 0.1)
        program = replace(program, entries=replace(program.entries, primary=primary))
    packed = packer.pack(plan, program)
    assert PlanPacker().pack(plan, program) == packed, "it hangs on what came before"
    for cut in (5, 9, len(packed) // 2, len(packed) - 1):
        with pytest.raises(DamagedError):
            unpack_plan(packed[:cut], plan.fabric.structure)


def test_demands_round_trip() -> None:
    """Demands come back as they were, and so does an empty set."""
    for wanted in (demands(("a", "b"), ("b", "c"), ("c", "ä\0")), demands()):
        assert plain(unpack_demands(pack_demands(wanted))) == plain(wanted)
    with pytest.raises(DamagedError):
        unpack_demands(pack({}, {}))


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"name": 1}', b"null"])
def test_damaged_jobs(content: bytes) -> None:
    """JSON that is not a job is damage."""
    for parse in (parse_record, parse_facts):
        with pytest.raises(DamagedError):
            parse(content)


def test_a_record_says_everything() -> None:
    """A record that lacks a fact of its job is damaged."""
    whole = JobRecord(job(), "e1", 1.5, JobFacts("e1", JobState.PROGRAMMED, "", 7, 1, 3, 2.5))
    assert parse_record(orjson.dumps(whole)) == whole
    assert parse_facts(orjson.dumps(whole.facts)) == whole.facts
    for name in [field.name for field in fields(JobFacts)]:
        damaged = orjson.loads(orjson.dumps(whole))
        del damaged["facts"][name]
        with pytest.raises(DamagedError, match=name):
            parse_record(orjson.dumps(damaged))
        with pytest.raises(DamagedError, match=name):
            parse_facts(orjson.dumps(damaged["facts"]))


def test_job_round_trip() -> None:
    """A job comes back equal, including enumerations."""
    wanted = replace(job(), priority=2.5)
    overlaps = replace(wanted, collectives=(replace(wanted.collectives[0], overlap=True),))
    for one in (wanted, overlaps):
        record = JobRecord(one, "e1", 1.5, JobFacts("e1", JobState.ACCEPTED))
        assert parse_record(orjson.dumps(record)) == record
