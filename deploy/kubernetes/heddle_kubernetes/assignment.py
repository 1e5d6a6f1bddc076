"""Where Kueue has put the pods of a workload: ``topologyAssignment`` of v1beta2, decoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from heddle_kubernetes.objects import HOSTNAME, each, part, text

MOST_DOMAINS = 100_000
"""Most domains that the schema allows in a slice; no fabric has so many hosts."""


class Unfit(Exception):  # noqa: N818 - it says what a workload is, and is no fault of ours
    """A workload cannot be planned; ``str()`` of it is the exact reason."""


def domains_of(assignment: object, where: str) -> list[tuple[str, int]]:
    """Return hosts and their numbers of pods, in the order in which indexed pods fill them.

    Args:
        assignment: The content of ``topologyAssignment``.
        where: What it belongs to, for error messages.

    Raises:
        Unfit: It has another form, or does not name hosts.
    """
    where = f"{where}: topologyAssignment"
    if not isinstance(assignment, Mapping):
        raise Unfit(f"{where} is {_kind(assignment)}, not an object")
    if "slices" not in assignment and "domains" in assignment:
        raise Unfit(f"{where} has 'domains', as v1beta1 writes it; v1beta2 is read here")
    levels = _texts(assignment.get("levels"), f"{where}.levels")
    if not levels or levels[-1] != HOSTNAME:
        lowest = repr(levels[-1][:80]) if levels else "nothing"
        raise Unfit(
            f"{where} ends at {lowest}, not at {HOSTNAME}: add that level to the Topology, so that "
            "hosts are known"
        )
    slices = assignment.get("slices")
    if not isinstance(slices, Sequence) or isinstance(slices, str) or not slices:
        raise Unfit(f"{where}.slices is {_kind(slices)}, not a list with a slice")
    found: list[tuple[str, int]] = []
    for number, one in enumerate(slices):
        here = f"{where}.slices[{number}]"
        count = _count(part(one, "domainCount"), f"{here}.domainCount")
        if len(found) + count > MOST_DOMAINS:
            raise Unfit(f"{where} has more than {MOST_DOMAINS} domains")
        values = part(one, "valuesPerLevel")
        if not isinstance(values, list) or len(values) != len(levels):
            raise Unfit(f"{here}.valuesPerLevel has not a value for each of {len(levels)} levels")
        hosts = _values(values[-1], count, f"{here}.valuesPerLevel[{len(levels) - 1}]")
        pods = _pods(part(one, "podCounts"), count, f"{here}.podCounts")
        found += zip(hosts, pods, strict=True)
    return found


def _values(value: object, count: int, where: str) -> list[str]:
    """Return the host of each domain."""
    universal, individual = part(value, "universal"), part(value, "individual")
    if (universal is None) == (individual is None):
        raise Unfit(f"{where} needs one of 'universal' and 'individual'")
    if individual is None:
        return _texts([universal], f"{where}.universal") * count
    roots = _texts(part(individual, "roots"), f"{where}.individual.roots")
    if len(roots) != count:
        raise Unfit(f"{where}.individual.roots has {len(roots)} values for {count} domains")
    before, after = text(individual, "prefix"), text(individual, "suffix")
    return [f"{before}{root}{after}" for root in roots]


def _pods(value: object, count: int, where: str) -> list[int]:
    """Return the number of pods of each domain."""
    universal, individual = part(value, "universal"), part(value, "individual")
    if (universal is None) == (individual is None):
        raise Unfit(f"{where} needs one of 'universal' and 'individual'")
    if individual is None:
        return [_count(universal, f"{where}.universal")] * count
    if not isinstance(individual, list) or len(individual) != count:
        raise Unfit(f"{where}.individual has not a number for each of {count} domains")
    return [_count(one, f"{where}.individual[{n}]") for n, one in enumerate(individual)]


def _count(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Unfit(f"{where} is {_kind(value)}, not an integer of 1 or more")
    return value


def _texts(value: object, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise Unfit(f"{where} is {_kind(value)}, not a list of texts")
    return list(value)


def _kind(value: Any) -> str:  # noqa: ANN401 - JSON
    """Describe a value for an error message, in at most 60 characters."""
    return "missing" if value is None else repr(value)[:60]


def hosts_of(workload: object, pod_sets: Sequence[str]) -> list[str]:
    """Return the hosts of some pod sets in the order of ranks, each host once.

    Raises:
        Unfit: A pod set has no assignment, or ranks do not follow hosts in it.
    """
    assigned = {
        text(one, "name"): one for one in each(workload, "status", "admission", "podSetAssignments")
    }
    found: list[tuple[str, int]] = []
    for name in pod_sets:
        where = f"pod set {name!r}"
        one = assigned.get(name)
        if part(one, "topologyAssignment") is None:
            if text(one, "delayedTopologyRequest") == "Pending":
                raise Unfit(f"{where} gets its topology after the checks; it is planned then")
            raise Unfit(
                f"{where} has no topologyAssignment: its ResourceFlavor needs a topologyName, and "
                "its pods may need an annotation kueue.x-k8s.io/podset-preferred-topology"
            )
        for host, pods in domains_of(part(one, "topologyAssignment"), where):
            if found and found[-1][0] == host:
                found[-1] = (host, found[-1][1] + pods)
            else:
                found.append((host, pods))
    return _even(found)


def _even(found: Sequence[tuple[str, int]]) -> list[str]:
    """Return the hosts, if each appears once and all have the same number of pods."""
    times = Counter(host for host, _ in found)
    for host, pods in found:
        if times[host] > 1:
            raise Unfit(
                f"host {host[:80]!r} is there twice, with other hosts between: ranks do not follow "
                "hosts"
            )
        if pods != found[0][1]:
            raise Unfit(
                f"hosts have different numbers of pods: {found[0][0][:80]!r} has {found[0][1]}, "
                f"{host[:80]!r} has {pods}; each host of a job gives the same number of GPUs"
            )
    return [host for host, _ in found]
