"""Whatever clients leave half done, a controller is afterwards as it was before."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import psutil
import pytest

from heddle.v1 import fabric_pb2
from tests.integration.hostile import ACTS, Act
from tests.support.serving import serving
from tests.support.waiting import PATIENCE, until

ROUNDS = 3
MEBIBYTES = 24
"""Growth of memory that is allowed after the first round, as allocators keep some."""


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
async def test_nothing_of_it_stays(tmp_path: Path, act: Act) -> None:
    """Tasks, file handles and sessions return to what they were, and memory stays bounded."""
    process = psutil.Process()
    async with serving(tmp_path / "api") as api:
        await api.put_fabric()
        await api.commit_plan()
        request = fabric_pb2.GetFabricRequest(name="fabrics/f1")
        await api.fabrics.GetFabric(request, timeout=PATIENCE)
        tasks, files = len(asyncio.all_tasks()), process.num_fds()
        await act(api)
        gc.collect()
        memory = process.memory_info().rss
        for _ in range(ROUNDS):
            await act(api)
        await until(lambda: len(asyncio.all_tasks()) <= tasks, "the calls to end")
        await until(lambda: not api.gateway.sessions("f1"))
        gc.collect()
        await until(lambda: process.num_fds() <= files + 2)
        assert process.memory_info().rss - memory < MEBIBYTES << 20
        await api.fabrics.GetFabric(request, timeout=PATIENCE)
