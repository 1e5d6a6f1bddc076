"""What NCCL Inspector would write about a job's iterations, by its documentation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heddle_controller.model.job import Collective, Job, Operation
from heddle_controller.traffic.groups import rank_groups, resolve_parallelism
from heddle_controller.traffic.jobs import host_of_ranks

FUNCTION = {
    Operation.ALL_REDUCE: "AllReduce",
    Operation.ALL_GATHER: "AllGather",
    Operation.REDUCE_SCATTER: "ReduceScatter",
    Operation.BROADCAST: "Broadcast",
    Operation.SEND_RECV: "Send",
    Operation.ALL_TO_ALL: "Send",
}


def metadata(version: str, host: str = "n0") -> dict[str, Any]:
    """Return the metadata of each record, or of each marker."""
    return {"inspector_output_format_version": version, "hostname": host, "pid": 7}


def run_of(
    job: Job, told: Sequence[Collective], *, iterations: int = 1, buckets: int = 1
) -> dict[int, list[tuple[dict[str, Any], dict[str, Any]]]]:
    """Return headers and records of each rank of a job whose collectives move what ``told`` says.

    Each collective takes ``buckets`` calls of equal size in each iteration.
    """
    hosts, records = host_of_ranks(job), dict[int, list[tuple[dict[str, Any], dict[str, Any]]]]()
    for one in told:
        for number, group in enumerate(rank_groups(resolve_parallelism(job), one.group)):
            header = {
                "id": f"0x{one.group.value}{number}",
                "comm_name": "unknown",
                "n_ranks": len(group),
                "nnodes": len(np.unique(hosts[group])),
            }
            for rank, world in enumerate(group.tolist()):
                for record in _calls(one, rank, len(group), iterations * buckets, buckets):
                    records.setdefault(world, []).append(({**header, "rank": rank}, record))
    return records


def _calls(
    one: Collective, rank: int, ranks: int, count: int, buckets: int
) -> Iterator[dict[str, Any]]:
    size = one.bytes // buckets
    peers = [-1]
    if one.operation is Operation.REDUCE_SCATTER:
        size //= ranks
    elif one.operation is Operation.ALL_TO_ALL:
        size, peers = size // ranks, [peer for peer in range(ranks) if peer != rank]
    elif one.operation is Operation.SEND_RECV:
        peers = [peer for peer in (rank - 1, rank + 1) if 0 <= peer < ranks]
    kind = "coll" if peers == [-1] else "p2p"
    for sequence in range(count):
        for peer in peers:
            told = {
                kind: FUNCTION[one.operation],
                f"{kind}_sn": sequence,
                f"{kind}_msg_size_bytes": size,
                f"{kind}_exec_time_us": 1000,
                f"{kind}_algobw_gbs": 1.0,
                f"{kind}_busbw_gbs": 1.0,
            }
            yield {f"{kind}_perf": told | ({"p2p_peer": peer} if kind == "p2p" else {})}


def write_run(
    folder: Path, records: dict[int, list[tuple[dict[str, Any], dict[str, Any]]]], version: str
) -> None:
    """Write a file for each rank, in one of the format versions."""
    folder.mkdir(exist_ok=True)
    for rank, own in records.items():
        lines = []
        for header, record in own:
            context = {"header": header, "metadata": metadata(version)}
            if version == "v4.3":
                kind = "coll" if "coll_perf" in record else "p2p"
                lines += [{**context, "dump_stats": {f"{kind}_records": 1}}, record]
            else:
                lines.append({**context, **record})
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"host-pid{rank}.log").write_text(text)
