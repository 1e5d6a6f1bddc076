"""Reads what NCCL Inspector measured of a run, as JSON lines or as text for Prometheus.

Inspector is NCCL's own profiler plug-in. Each of its records is one call of one rank: the function,
the communicator, how many bytes, and for how long. Versions v4.0 to v4.2 repeat communicator and
process in each record. v4.3 has them once, in a marker before their records, with the number of
these records. Text for Prometheus has means of many calls, for ranges of sizes, and does not say
how many calls. Sizes then follow from bandwidth and time.

Sizes in the files are NCCL's, and are converted to what one rank puts in. They differ for a
reduce-scatter, where NCCL's size is the part that one rank gets.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from heddle_controller.model.errors import refuse
from heddle_controller.model.files.content import open_content
from heddle_controller.traffic.lines import MOST_BYTES_OF_TRACE, Lines

VERSIONS = ("v4.0", "v4.1", "v4.2", "v4.3")
"""Versions of the JSON that can be read."""
CONTEXT_ONCE = "v4.3"
"""The version that has communicator and process once, before their records."""
PROMETHEUS = re.compile(r"v\d+\.1")
"""Versions of the text: the version of NCCL's interface, then that of the text, which is 1."""
METRICS = {
    "nccl_bus_bandwidth_gbs": ("collective", "rate"),
    "nccl_collective_exec_time_microseconds": ("collective", "time"),
    "nccl_p2p_bus_bandwidth_gbs": ("p2p_operation", "rate"),
    "nccl_p2p_exec_time_microseconds": ("p2p_operation", "time"),
}
NO_BYTES = "0B"
"""The label of calls that move nothing, such as sends to an expert that gets no token."""
_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_RANGE = re.compile(r"(\d+)-(\d+)(B|KB|MB|GB|TB)")
_LARGEST = 1 << 62
MAX_FILES = 100_000


class Call(NamedTuple):
    """A kind of call, and who makes it. Calls that agree in all fields are added up."""

    communicator: str
    """Id of the communicator; in text for Prometheus, its name and size."""
    name: str
    """The framework's name of the communicator; "unknown" if it has none."""
    rank_count: int
    node_count: int
    function: str
    """The function of NCCL, such as "AllReduce" or "Send"."""
    rank: int
    """The caller's rank in the communicator; -1 if it is not known."""
    peer: int
    """The rank of the other end; -1 for collectives, or if it is not known."""


@dataclass(slots=True)
class Sum:
    """The sum of all calls of a kind."""

    calls: int = 0
    """Number of calls; 0 if they were not counted."""
    bytes: float = 0.0
    """Bytes that the rank put in."""
    seconds: float = 0.0
    """Time that the calls took."""
    sizes: set[float] = field(default_factory=set)
    """Sizes of single calls in bytes. At most three are kept, which tells whether they differ."""

    def add(self, size: float, seconds: float, *, counted: bool) -> None:
        """Add one more call (``counted``), or the mean of many calls."""
        self.calls += counted
        self.bytes += size
        self.seconds += seconds
        if len(self.sizes) < 3:  # noqa: PLR2004 - see above
            self.sizes.add(size)


CallSums = dict[Call, Sum]


def load_measured(paths: Iterable[Path]) -> CallSums:
    """Return the sums of all calls in files of JSON or text, plain or gzip.

    A folder stands for all files below it.

    Raises:
        InputError: a file cannot be read or has neither form, a line was cut, a version is not
            known, or a number makes no sense. The error names the file and the line.
    """
    found: CallSums = defaultdict(Sum)
    for path in _files(paths):
        with open_content(path, MOST_BYTES_OF_TRACE) as file:
            lines = Lines(file, path)
            first = next((line for line in lines if line.strip()), "")
            if first.lstrip().startswith("{"):
                _read_json(first, lines, found)
            else:
                _read_text(first, lines, found)
    return dict(found)


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        below = sorted(one for one in path.rglob("*") if one.is_file())
        if not below or len(below) > MAX_FILES:
            raise refuse(
                str(path), "", f"the folder has {len(below)} files: name another, or files"
            )
        yield from below


def put_in(function: str, size: float, ranks: int) -> float:
    """Return the bytes that one rank puts in, from the size that NCCL reports."""
    return size * ranks if function == "ReduceScatter" else size


def bus_factor(function: str, ranks: int) -> float:
    """Return the bytes on the busiest link for each byte that a rank puts in, as in nccl-tests."""
    if function == "AllReduce":
        return 2 * (ranks - 1) / ranks
    if function == "ReduceScatter":
        return (ranks - 1) / ranks
    return float(ranks - 1) if function == "AllGather" else 1.0


def _read_json(first: str, lines: Lines, found: CallSums) -> None:
    """Read JSON lines. A marker of v4.3 says how many of the following records belong to it."""
    context: Mapping[str, Any] | None = None
    left: dict[str, int] = {}
    line: str | None = first
    while line is not None:
        if line.strip():
            record = _object(line, lines)
            if "dump_stats" in record:
                _none_missing(left, lines)
                _version(record, lines)
                context, left = _marker(record, lines)
            elif context is None or "header" in record:
                _version(record, lines)
                _add_record(record, record, lines, found)
            else:
                _take_one(left, record, lines)
                _add_record(context, record, lines, found)
        line = next(lines, None)
    _none_missing(left, lines)


def _object(line: str, lines: Lines) -> dict[str, Any]:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        reason = f"no JSON ({error}); lines that were cut, or written to at once, count for nothing"
        raise lines.refuse(reason) from None
    if not isinstance(record, dict):
        raise lines.refuse("not an object; give what NCCL Inspector writes")
    return record


def _version(record: Mapping[str, Any], lines: Lines) -> None:
    told = _part(record, "metadata", lines).get("inspector_output_format_version")
    if told not in VERSIONS:
        known = f"{VERSIONS[0]} to {VERSIONS[-1]} are known"
        raise lines.refuse(f"the format is {str(told)[:40]!r}, and {known}")


def _part(record: Mapping[str, Any], name: str, lines: Lines) -> Mapping[str, Any]:
    found = record.get(name)
    if not isinstance(found, dict):
        raise lines.refuse(f"it has no {name}; give whole files of NCCL Inspector")
    return found


def _marker(
    record: Mapping[str, Any], lines: Lines
) -> tuple[Mapping[str, Any] | None, dict[str, int]]:
    """Return the context that a marker gives to its records, and how many there are of each kind.

    Returns None and no counts for versions in which each record has its own context.
    """
    stats = _part(record, "dump_stats", lines)
    lost = sum(
        _whole(stats.get(f"{kind}_dropped_total", 0), f"{kind}_dropped_total", lines)
        for kind in ("coll", "p2p")
    )
    if lost:
        cure = "raise NCCL_INSPECTOR_DUMP_COLL_RING_SIZE and NCCL_INSPECTOR_DUMP_P2P_RING_SIZE"
        raise lines.refuse(f"{lost} calls were overwritten before they were written; {cure}")
    if _part(record, "metadata", lines).get("inspector_output_format_version") != CONTEXT_ONCE:
        return None, {}
    names = {"coll_perf": "coll_records", "p2p_perf": "p2p_records", "proxy_trace": "proxy_records"}
    return record, {kind: _whole(stats.get(name, 0), name, lines) for kind, name in names.items()}


def _take_one(left: dict[str, int], record: Mapping[str, Any], lines: Lines) -> None:
    """Count one of the records that a marker has announced."""
    kind = next(iter(record), "")
    if left.get(kind, 0) <= 0:
        raise lines.refuse(f"a record {kind[:40]!r} more than its dump_stats tells of")
    left[kind] -= 1


def _none_missing(left: Mapping[str, int], lines: Lines) -> None:
    if missing := sum(left.values()):
        text = f"{missing} records are missing that the last dump_stats tells of: the file was cut"
        raise lines.refuse(text)


def _add_record(
    context: Mapping[str, Any], record: Mapping[str, Any], lines: Lines, found: CallSums
) -> None:
    kind = next((kind for kind in ("coll", "p2p") if f"{kind}_perf" in record), None)
    if kind is None:
        if "proxy_trace" in record:
            return
        raise lines.refuse("neither coll_perf nor p2p_perf; give what NCCL Inspector writes")
    header, told = _part(context, "header", lines), _part(record, f"{kind}_perf", lines)
    ranks = _whole(header.get("n_ranks"), "n_ranks", lines)
    function = _text(told.get(kind), kind, lines)
    call = Call(
        communicator=_text(header.get("id"), "id", lines),
        name=str(header.get("comm_name", "unknown"))[:256],
        rank_count=ranks,
        node_count=_whole(header.get("nnodes"), "nnodes", lines),
        function=function,
        rank=_whole(header.get("rank"), "rank", lines),
        peer=_whole(told.get("p2p_peer"), "p2p_peer", lines) if kind == "p2p" else -1,
    )
    if call.rank >= ranks or call.peer >= ranks or not 0 < call.node_count <= ranks:
        raise lines.refuse(f"rank, peer or nodes do not fit {ranks} ranks")
    size = _whole(told.get(f"{kind}_msg_size_bytes"), f"{kind}_msg_size_bytes", lines)
    micros = _whole(told.get(f"{kind}_exec_time_us"), f"{kind}_exec_time_us", lines)
    found[call].add(put_in(function, float(size), ranks), micros / 1e6, counted=True)


def _whole(value: object, name: str, lines: Lines) -> int:
    if type(value) is not int or not 0 <= value < _LARGEST:
        raise lines.refuse(
            f"{name} is {str(value)[:40]!r}; it should be a whole number, 0 or above"
        )
    return value


def _text(value: object, name: str, lines: Lines) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 256:  # noqa: PLR2004 - of any name
        raise lines.refuse(f"{name} is {str(value)[:40]!r}; it should be a name")
    return value


def _read_text(first: str, lines: Lines, found: CallSums) -> None:
    """Read text for Prometheus, which has a mean bandwidth and time for each range of sizes."""
    means: dict[tuple[Call, str, str], dict[str, float]] = defaultdict(dict)
    line: str | None = first
    while line is not None:
        if line.strip() and not line.startswith("#"):
            _add_sample(line, lines, means)
        line = next(lines, None)
    if lines.cut:
        raise lines.refuse("the line was cut: the last line of such text ends as all others")
    if not means:
        raise refuse(str(lines.path), "", "neither JSON nor text of NCCL Inspector is in it")
    for (call, sizes, where), mean in means.items():
        if mean.keys() != {"rate", "time"}:
            text = f"{where}: has no {'time' if 'rate' in mean else 'bandwidth'}; the file was cut"
            raise refuse(str(lines.path), "", text)
        size = mean["rate"] * 1e3 * mean["time"] / bus_factor(call.function, call.rank_count)
        low, high = _range(sizes, lines)
        told = put_in(call.function, 1.0, call.rank_count)
        size = min(max(size, low * told), high * told)
        found[call].add(size, mean["time"] / 1e6, counted=False)


def _add_sample(
    line: str, lines: Lines, means: dict[tuple[Call, str, str], dict[str, float]]
) -> None:
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - so that no other command waits for it

    try:
        samples = [one for family in text_string_to_metric_families(line) for one in family.samples]
    except (ValueError, IndexError, KeyError) as error:
        raise lines.refuse(f"no line of Prometheus' text: {error}") from None
    for sample in samples:
        if sample.name not in METRICS:
            continue
        label, what = METRICS[sample.name]
        told = sample.labels
        missing = {"version", "comm_name", "n_nodes", "nranks", "message_size", label} - told.keys()
        if missing:
            raise lines.refuse(f"{sample.name} has no label {min(missing)}")
        if told["message_size"] == NO_BYTES:
            continue
        if not PROMETHEUS.fullmatch(told["version"]):
            raise lines.refuse(
                f"the version is {told['version'][:40]!r}; that of the text is not 1"
            )
        if not math.isfinite(sample.value) or sample.value <= 0:
            raise lines.refuse(f"{sample.name} is {sample.value:g}; it should be above 0")
        ranks, nodes = (_whole(_integer(told[name]), name, lines) for name in ("nranks", "n_nodes"))
        if not ranks > 1 or not 0 < nodes <= ranks:
            raise lines.refuse(f"{ranks} ranks on {nodes} nodes are no communicator")
        communicator = f"{told['comm_name']} of {ranks} on {nodes}"
        call = Call(communicator, told["comm_name"], ranks, nodes, told[label], -1, -1)
        where = f"{told[label]} of {communicator}, {told['message_size']}"
        gpu = told.get("node", "") + told.get("gpu", "") + told.get("algo_proto", "")
        means[call, told["message_size"], f"{where} {gpu}"][what] = sample.value
        _range(told["message_size"], lines)


def _integer(text: str) -> object:
    return int(text) if text.isdecimal() and len(text) < 19 else text  # noqa: PLR2004 - 64 bits


def _range(text: str, lines: Lines) -> tuple[float, float]:
    """Return the lower and upper bound, in bytes, of a label such as "4-5GB"."""
    parts = _RANGE.fullmatch(text)
    if parts is not None:
        low, high = (float(parts[row]) * _UNITS[parts[3]] for row in (1, 2))
        if low <= high < _LARGEST:
            return low, high
    raise lines.refuse(f"message_size is {text[:40]!r}; it should be such as 4-5GB")
