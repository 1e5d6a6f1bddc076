"""Patterns of traffic, and their files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from heddle_controller.model.demand import resolve
from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.files.fabric_file import fabric_document, parse_fabric
from heddle_controller.model.files.flows_file import load_demands, load_transfers
from heddle_emulator.topology import clos
from heddle_emulator.traffic import PATTERNS, flows_between, save_flows
from heddle_emulator.traffic.matrix import incasts

FABRIC = clos(leaves=4, spines=2, nics_per_leaf=4)


@given(st.integers(2, 50), st.integers(0, 10_000))
def test_permutation(nics: int, seed: int) -> None:
    """Every NIC sends once and receives once, and never to itself."""
    source, target = PATTERNS["permutation"](nics, np.random.default_rng(seed))
    assert sorted(source.tolist()) == sorted(target.tolist()) == list(range(nics))
    assert (source != target).all()


@given(st.sampled_from(sorted(PATTERNS)), st.integers(2, 30), st.integers(0, 99))
def test_no_self_flows_and_nobody_unknown(pattern: str, nics: int, seed: int) -> None:
    """In every pattern, both ends are NICs that take part, and they differ."""
    source, target = PATTERNS[pattern](nics, np.random.default_rng(seed))
    assert (source != target).all()
    assert set(source.tolist()) | set(target.tolist()) <= set(range(nics))


def test_all_to_all_is_complete() -> None:
    """Every ordered pair occurs once, with its part of the line rate."""
    flows = flows_between(FABRIC, "all-to-all", nics=5, seed=3)
    assert len(set(zip(flows.source.tolist(), flows.destination.tolist(), strict=True))) == 20
    assert flows.gbps.tolist() == [100.0] * 20


def test_same_seed_same_flows() -> None:
    """Equal seeds give equal flows, and another seed gives others."""
    one, two, other = (flows_between(FABRIC, "uniform", seed=seed, nics=9) for seed in (4, 4, 5))
    assert (one.source == two.source).all()
    assert (one.destination == two.destination).all()
    assert (one.destination != other.destination).any()


@pytest.mark.parametrize("name", ["flows.csv", "flows.csv.gz"])
def test_a_file_reads_back_as_it_was(tmp_path: Path, name: str) -> None:
    """The controller reads what was written, including rate and QPs."""
    flows = flows_between(FABRIC, "permutation", seed=2, gbps=123.4567890123, qps=3)
    save_flows(FABRIC, flows, tmp_path / name)
    read = resolve(load_demands(tmp_path / name), FABRIC, origin=name)
    assert read.ids == flows.ids
    for column in ("source", "destination", "gbps", "qps", "phase", "traffic_class"):
        assert getattr(read, column).tolist() == getattr(flows, column).tolist()
    assert read.job_names == flows.job_names


@pytest.mark.parametrize(
    ("options", "record"),
    [
        ({"nics": 1}, "nics"),
        ({"nics": 17}, "nics"),
        ({"gbps": float("inf")}, "gbps"),
        ({"gbps": -1.0}, "gbps"),
        ({"qps": 0}, "qps"),
    ],
)
def test_refusals(options: dict[str, float], record: str) -> None:
    """Options that make no traffic are refused by name."""
    with pytest.raises(InputError) as refused:
        flows_between(FABRIC, "permutation", **options)  # type: ignore[arg-type]  # faulty on purpose
    assert refused.value.problems[0].record == record


def test_all_to_all_of_a_whole_cluster_is_refused() -> None:
    """More flows than would fit anywhere are refused before they are made."""
    fabric = clos(leaves=64, spines=1, nics_per_leaf=64)
    assert len(fabric.rows_of_kind(NodeKind.NIC)) == 4096
    with pytest.raises(InputError, match="take fewer with --nics"):
        flows_between(fabric, "all-to-all")


@given(st.integers(2, 60), st.integers(1, 20), st.integers(0, 99))
def test_incasts_are_groups_apart(nics: int, fan_in: int, seed: int) -> None:
    """There are as many groups as fit.

    In each, fan_in NICs send to one, and groups are disjoint.
    """
    assume(fan_in < nics)
    source, target = incasts(nics, fan_in, np.random.default_rng(seed))
    receivers, senders = np.unique(target, return_counts=True)
    assert len(receivers) == nics // (fan_in + 1)
    assert set(senders.tolist()) == {fan_in}
    assert len({*source.tolist(), *receivers.tolist()}) == len(source) + len(receivers)
    assert max(*source.tolist(), *target.tolist()) < nics


def test_groups_are_of_incasts_alone() -> None:
    """Refused are more senders than NICs, none, and groups of another pattern."""
    for pattern, fan_in, word in (
        ("incast", 16, "15"),
        ("incast", 0, "fan-in"),
        ("shift", 2, "incast"),
    ):
        with pytest.raises(InputError, match=word):
            flows_between(FABRIC, pattern, fan_in=fan_in)


def test_names_with_commas_and_quotes_are_read_back(tmp_path: Path) -> None:
    """NICs may be called what CSV must quote."""
    text = json.dumps(fabric_document(FABRIC)).replace("l0-h0-n0", 'l0,\\"h0')
    fabric = parse_fabric(json.loads(text), "fabric")
    flows = flows_between(fabric, "shift")
    save_flows(fabric, flows, tmp_path / "flows.csv")
    read = resolve(load_demands(tmp_path / "flows.csv"), fabric, origin="flows")
    assert 'l0,"h0' in fabric.structure.index
    assert read.source.tolist() == flows.source.tolist()
    assert read.destination.tolist() == flows.destination.tolist()


def test_bytes_are_written_and_read(tmp_path: Path) -> None:
    """The bytes of each flow are read back. Without sizes, the file has no such column."""
    flows = flows_between(FABRIC, "incast", fan_in=3, size=64e6)
    save_flows(FABRIC, flows, tmp_path / "told.csv")
    save_flows(FABRIC, flows_between(FABRIC, "incast"), tmp_path / "plain.csv")
    demands, transfers = load_transfers(tmp_path / "told.csv")
    assert len(demands) == 12
    assert transfers.bytes.tolist() == [64e6] * 12
    assert transfers.start.tolist() == [0.0] * 12
    assert np.isinf(load_transfers(tmp_path / "plain.csv")[1].bytes).all()
    assert "bytes" not in (tmp_path / "plain.csv").read_text()
