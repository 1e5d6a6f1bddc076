"""What is decided about workloads: a pure function that accepts any content of an object."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle.v1.placement_pb2 import JobSpec
from heddle_kubernetes.assignment import Unfit, domains_of, hosts_of
from heddle_kubernetes.decision import Decision, Names, decide, without_containers
from tests.support.depth import examples
from tests.support.kube_api import Json, merge
from tests.support.kube_world import CHECK, condition, workload

HOSTS = st.lists(
    st.from_regex(r"\A(rack|n)[0-9]{1,3}(\.example\.net)?\Z"), min_size=1, max_size=12, unique=True
)
NAMES = Names("a cluster")
HOSTNAME = "kubernetes.io/hostname"


def common(values: list[str]) -> str:
    """Return the longest common prefix of all values."""
    first, last = min(values), max(values)
    return first[: next((n for n, c in enumerate(first) if last[n : n + 1] != c), len(first))]


def encoded(hosts: list[str], pods: list[int], draw: Any) -> Json:
    """Return an assignment in one of the many forms that v1beta2 has for it."""
    cuts = sorted(draw(st.sets(st.integers(1, len(hosts) - 1), max_size=3))) if hosts[1:] else []
    slices = []
    for begin, end in zip([0, *cuts], [*cuts, len(hosts)], strict=True):
        mine, count = hosts[begin:end], pods[begin:end]
        prefix = common(mine) if draw(st.booleans()) else ""
        rest = [host.removeprefix(prefix) for host in mine]
        suffix = common([one[::-1] for one in rest])[::-1] if draw(st.booleans()) else ""
        roots = [one.removesuffix(suffix) if suffix else one for one in rest]
        values: Json = {"roots": roots}
        values |= {"prefix": prefix} if prefix else {}
        values |= {"suffix": suffix} if suffix else {}
        alone = len(mine) == 1 and draw(st.booleans())
        lowest = {"universal": mine[0]} if alone else {"individual": values}
        same = len(set(count)) == 1 and draw(st.booleans())
        slices.append(
            {
                "domainCount": len(mine),
                "valuesPerLevel": [{"universal": "z0"}, lowest],
                "podCounts": {"universal": count[0]} if same else {"individual": count},
            }
        )
    return {"levels": ["example.net/zone", "kubernetes.io/hostname"], "slices": slices}


@pytest.mark.deep
@given(data=st.data(), hosts=HOSTS)
@settings(max_examples=examples(100, 2000), deadline=None)
def test_an_assignment_is_read_as_it_is_meant(data: st.DataObject, hosts: list[str]) -> None:
    """Any form of prefixes, suffixes, slices and common values gives the same hosts and pods."""
    pods = data.draw(st.lists(st.integers(1, 9), min_size=len(hosts), max_size=len(hosts)))
    found = domains_of(encoded(hosts, pods, data.draw), "pods")
    assert found == list(zip(hosts, pods, strict=True))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 1 << 40) | st.text(max_size=8) | st.floats(),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=6), below, max_size=3)
    ),
    max_leaves=6,
)


def paths(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the path of everything in an object."""
    found = [path]
    if isinstance(value, dict):
        found += [each for name, one in value.items() for each in paths(one, (*path, name))]
    elif isinstance(value, list):
        found += [each for place, one in enumerate(value) for each in paths(one, (*path, place))]
    return found


def replaced(value: Any, path: tuple[str | int, ...], new: object) -> Any:
    """Return the object with something else at a path."""
    if not path:
        return new
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(value[path[0]], path[1:], new)
    return copy


@pytest.mark.deep
@given(data=st.data())
@settings(max_examples=examples(150, 2000), deadline=None)
def test_no_object_is_too_odd(data: st.DataObject) -> None:
    """Every object gives a decision, and the same one without what its pods run.

    If one of our checks waits, it has either a job or a reason.
    """
    whole = workload("w", ["n0", "n1"])
    one = whole
    for _ in range(data.draw(st.integers(1, 3))):
        # the API server always sets what identifies an object
        places = [path for path in paths(one) if path and path[0] in {"spec", "status"}]
        one = replaced(one, data.draw(st.sampled_from(places)), data.draw(JSON))
    found = decide(one, NAMES, {CHECK})
    assert found.job == NAMES.of(whole)
    assert decide(without_containers(one), NAMES, {CHECK}) == found
    assert not found.checks or bool(found.spec) != bool(found.reason)
    if found.spec:
        assert JobSpec.FromString(found.spec).hosts


@pytest.mark.parametrize(
    ("slices", "reason"),
    [
        ([], "not a list with a slice"),
        ([{"domainCount": 0}], "domainCount is 0, not an integer of 1 or more"),
        ([{"domainCount": True}], "domainCount is True"),
        ([{"domainCount": 1 << 40}], "more than 100000 domains"),
        ([{"domainCount": 1, "valuesPerLevel": []}], "not a value for each of 1 levels"),
        ([{"domainCount": 1, "valuesPerLevel": [{}]}], "one of 'universal' and 'individual'"),
        (
            [{"domainCount": 2, "valuesPerLevel": [{"individual": {"roots": ["a"]}}]}],
            "roots has 1 values for 2 domains",
        ),
        (
            [{"domainCount": 1, "valuesPerLevel": [{"universal": "a"}], "podCounts": {}}],
            "podCounts needs one of",
        ),
    ],
)
def test_a_broken_assignment_is_named(slices: list[Json], reason: str) -> None:
    """The error names the field and says what is wrong with it."""
    with pytest.raises(Unfit, match=reason):
        domains_of({"levels": ["kubernetes.io/hostname"], "slices": slices}, "pods")


def test_pods_of_one_host_are_one() -> None:
    """A host may continue in the next slice or pod set, but may not come back later."""

    def placed(name: str, *hosts: str) -> Json:
        slices = [
            {
                "domainCount": 1,
                "valuesPerLevel": [{"universal": host}],
                "podCounts": {"universal": 1},
            }
            for host in hosts
        ]
        return {"name": name, "topologyAssignment": {"levels": [HOSTNAME], "slices": slices}}

    sets = [placed("a", "n0", "n0", "n1"), placed("b", "n1", "n2", "n2")]
    one = {"status": {"admission": {"podSetAssignments": sets}}}
    assert hosts_of(one, ["a", "b"]) == ["n0", "n1", "n2"]
    with pytest.raises(Unfit, match="'n1' is there twice"):
        hosts_of(one, ["b", "a"])


def test_jobs_of_two_clusters_and_of_two_workloads_never_meet() -> None:
    """Names are readable and at most 63 characters long, and differ by cluster and by uid."""
    one = {"metadata": {"name": "t" * 253, "namespace": "a", "uid": "1"}}
    other = {"metadata": {"name": "t" * 253, "namespace": "a", "uid": "2"}}
    names = {Names(cluster).of(each) for cluster in ("c1", "c2") for each in (one, other)}
    assert len(names) == 4
    assert max(map(len, names)) <= 63
    assert NAMES.is_ours(NAMES.of(one))
    assert not NAMES.is_ours(Names("another").of(one))


def test_only_a_workload_that_holds_its_quota_has_a_job() -> None:
    """A workload without a check of ours has no job. Changes of other fields change no decision."""
    one = workload("w", ["n0", "n1"], reserved="2026-01-01T00:00:00Z")
    found = decide(one, NAMES, {CHECK})
    assert (found.checks, found.since) == ((CHECK,), 1767225600.0)
    touched: Json = merge(one, {"metadata": {"labels": {"any": "label"}, "resourceVersion": "9"}})
    assert decide(touched, NAMES, {CHECK}) == found
    assert decide(one, NAMES, {"else"}) == Decision("team/w", found.job)
    ended = {"conditions": [*one["status"]["conditions"], condition("Finished", "True")]}
    assert decide(merge(one, {"status": ended}), NAMES, {CHECK}).over


def test_a_workload_may_say_which_gpus_it_has() -> None:
    """The job then has these GPUs of each host, and not all of them."""
    found = decide(workload("w", ["n1", "n2"], "gpus=2-3 tp=2"), NAMES, {CHECK})
    spec = JobSpec.FromString(found.spec)
    assert (list(spec.hosts), spec.gpus_per_host) == (["n1", "n2"], 2)
    assert [list(part.gpus) for part in spec.gpus] == [[2, 3]]
    assert "runs backwards" in decide(workload("w", ["n1"], "gpus=3-2"), NAMES, {CHECK}).reason
