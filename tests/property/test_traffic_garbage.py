"""Spoilt job, trace and fabric files are read or refused, and cause no other error."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_controller.importers import ImportOptions, load_fabric
from heddle_controller.model.errors import InputError
from heddle_controller.traffic.jobs_file import load_jobs
from heddle_controller.traffic.traces import load_trace
from tests.unit.importers.test_cables import LAB, PAIR, SUBNET, lldp_of

JOBS = b"""- job: a
  hosts: [h0, "h[1-3]"]
  gpus_per_host: 8
  parallelism: {tp: 8, dp: 2, pp: 2, ep: 2}
  collectives: [{operation: all_to_all, group: ep, bytes: 1.5MiB, algorithm: pairwise}]
  priority: 1.5
- &b {job: b, hosts: "x[08-11]", gpus_per_host: 1, qps: 4, class: latency}
"""
AICB = b"""[ pp_stage0: [rank0, rank1] ]
comm_type,comm_group,comm_group_size,msg_size,stage,dst,src
CommType.all_gather,CommGroup.tp_group,2,33554432,forward,None,None
CommType.isend,CommGroup.pp_group,2,33554432,forward,None,None
CommType.epoch_end,None,None,0,,None,None
"""
SIMAI = b"""X model_parallel_NPU_group: 2 ep: 2 pp: 4 vpp: 8 ga: 3 all_gpus: 64 pp_comm 1048576
1
moe\t-1\t1\tALLTOALL_EP\t4096\t1\tALLREDUCE\t4096\t1\tALLGATHER_DP_EP\t8192\t100
"""
TABLE = b"host,leaf,spine,core\nh1,S1,P1,G\nh2,S1,P2,G\n"
GRAPH = b"""{"directed": false, "nodes": [{"id": "a", "role": "host"}, {"name": "b", "id": 1,
"role": "nic"}, {"id": "s", "role": "tor", "rail": 1}], "links": [{"source": "a", "target": "s",
"speed": "400G", "key": 0}, {"source": 1, "target": "s", "speed": 4e2, "state": "up"}]}"""

TOPOGRAPH = b'{"instances": [{"id": "i", "network_layers": ["l", "s"], "labels": {"a": "b"}}]}'

READERS: list[tuple[Callable[[Path], object], bytes]] = [
    (load_jobs, JOBS),
    (load_trace, AICB),
    (load_trace, SIMAI),
    (load_fabric, TABLE),
    (load_fabric, GRAPH),
    (load_fabric, SUBNET.encode()),
    (partial(load_fabric, options=ImportOptions(link_gbps=100)), LAB.encode()),
    (load_fabric, json.dumps(lldp_of(**PAIR)).encode()),
    (load_fabric, TOPOGRAPH),
]


@st.composite
def _spoilt(draw: st.DrawFn, content: bytes) -> bytes:
    """The content with a few stretches removed, repeated or overwritten."""
    spoilt = content
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(spoilt)))
        end = draw(st.integers(start, min(len(spoilt), start + 20)))
        instead = draw(
            st.one_of(
                st.just(b""),
                st.just(spoilt[start:end] * 2),
                st.binary(max_size=8),
                st.sampled_from([b"nan", b"-1", b"1e999", b"null", b"[", b"*b", b"9" * 30, b"\n"]),
            )
        )
        spoilt = spoilt[:start] + instead + spoilt[end:]
    return spoilt


@pytest.mark.parametrize(("reader", "content"), READERS)
@given(data=st.data())
def test_spoilt_files_are_read_or_refused(
    reader: Callable[[Path], object], content: bytes, data: st.DataObject
) -> None:
    """A spoilt file is read or refused with ``InputError``; nothing else is raised."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input"
        path.write_bytes(content)
        assert reader(path)
        path.write_bytes(data.draw(_spoilt(content)))
        with contextlib.suppress(InputError):
            reader(path)


@pytest.mark.parametrize("reader", [load_jobs, load_trace, load_fabric])
@given(content=st.binary(max_size=200))
def test_garbage_is_refused_in_one_line(reader: Callable[[Path], object], content: bytes) -> None:
    """Random bytes are refused in one line that begins with the file's path."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input"
        path.write_bytes(content)
        with pytest.raises(InputError) as caught:
            reader(path)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value).splitlines()) == 1
