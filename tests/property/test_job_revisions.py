"""Job specifications after hosts are replaced, added and removed, against a plain list."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.client import InvalidRequest
from heddle.client.revise import replaced, resized, suspended
from heddle.v1 import placement_pb2 as pb
from heddle_controller.serve.codec.job import job_from_pb, job_to_pb
from heddle_controller.traffic.groups import resolve_parallelism
from tests.support.depth import examples

NAMES = [f"n{number}" for number in range(9)]
Part = tuple[int, ...]
parts = st.permutations(range(4)).flatmap(
    lambda gpus: st.integers(1, 4).map(lambda count: tuple(gpus[:count]))
)
hosts = st.lists(st.sampled_from(NAMES), max_size=4)


@st.composite
def specs(draw: st.DrawFn) -> tuple[pb.JobSpec, list[tuple[str, Part]]]:
    """Draw a job specification, and its hosts with the GPUs that the job has on each."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True))
    whole = draw(st.booleans())
    equal = draw(parts)
    own = [() if whole else draw(st.sampled_from([equal, draw(parts)])) for _ in names]
    spec = pb.JobSpec(hosts=names, gpus_per_host=4 if whole else 0, qps=3)
    if not whole:
        spec.gpus.extend(pb.HostGpus(gpus=part) for part in own)
    stored = job_to_pb(job_from_pb("j", spec))  # as the controller returns it
    return stored, list(zip(names, own, strict=True))


def read(spec: pb.JobSpec) -> list[tuple[str, Part]]:
    """The hosts of a job, each with the GPUs that the job has there."""
    return list(job_from_pb("j", spec).held.items())


@pytest.mark.deep
@settings(max_examples=examples(60, 2000))
@given(specs(), hosts, hosts)
def test_hosts_change_places(
    job: tuple[pb.JobSpec, list[tuple[str, Part]]], gone: list[str], come: list[str]
) -> None:
    """A new host takes the place and the GPUs of the old one, or all changes are refused."""
    spec, own = job
    wanted = dict(zip(gone, come, strict=False))
    names = [name for name, _ in own]
    fits = (
        set(wanted) <= set(names)
        and not set(wanted.values()) & set(names)
        and len(set(wanted.values())) == len(wanted)
    )
    if not fits:
        with pytest.raises(InvalidRequest, match=r"'n[0-8]' is (not of|of the job|named twice)"):
            replaced(spec, wanted)
        return
    found = replaced(spec, wanted)
    assert read(found) == [(wanted.get(name, name), part) for name, part in own]
    back = replaced(found, {new: old for old, new in wanted.items()})
    assert back == spec


@pytest.mark.deep
@settings(max_examples=examples(60, 2000))
@given(specs(), hosts, hosts, st.none() | parts)
def test_hosts_come_and_go(
    job: tuple[pb.JobSpec, list[tuple[str, Part]]],
    add: list[str],
    remove: list[str],
    gpus: Part | None,
) -> None:
    """Remaining hosts keep order and GPUs, new ones come last, and ``dp`` is recomputed.

    Requests that make no sense are refused.
    """
    spec, own = job
    names = [name for name, _ in own]
    whole = not spec.gpus
    left = [one for one in own if one[0] not in remove]
    sound = (
        set(remove) <= set(names)
        and not set(add) & set(names)
        and len(set(add)) == len(add)
        and bool(add or remove)
        and bool(left or add)
        and not (whole and gpus)
        and not (not whole and add and not gpus and len({part for _, part in own}) > 1)
    )
    told = [pb.HostGpus(gpus=gpus)] if gpus else []
    if not sound:
        with pytest.raises(InvalidRequest, match=r"hosts: |gpus: "):
            resized(spec, add=add, remove=remove, gpus=told)
        return
    found = resized(spec, add=add, remove=remove, gpus=told)
    each = () if whole else gpus or own[0][1]
    assert read(found) == left + [(name, each) for name in add]
    model = job_from_pb("j", found)
    assert resolve_parallelism(model).dp == model.rank_count
    assert found.qps == spec.qps
    rests = suspended(found, rests=True)
    assert (rests.suspended, suspended(rests, rests=False)) == (True, found)
