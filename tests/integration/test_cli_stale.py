"""What an operator sees while the Redis of the controller is away."""

from __future__ import annotations

import asyncio
from pathlib import Path

from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_emulator.topology import clos
from tests.integration.controlling import controlling
from tests.redis_server import ALWAYS, RedisServer
from tests.waiting import PATIENCE


async def test_answers_of_the_past_are_marked(tmp_path: Path) -> None:
    """Reads are answered with a note of their age beside, not among, what was asked for.

    Writes are refused with when to try again; back again, nothing is noted.
    """
    fabric = tmp_path / "pod.json"
    save_fabric_file(clos(leaves=2, spines=2, nics_per_leaf=2, name="pod"), fabric)
    with RedisServer(tmp_path / "redis", *ALWAYS) as redis:
        async with controlling(tmp_path, "--store", redis.url) as controller:
            done = await controller.does("fabric", "import", fabric)
            assert (done.code, done.err) == (0, "")
            redis.kill()
            before = await controller.does("fabric", "list", "--json")
            async with asyncio.timeout(PATIENCE):
                while "this is of" not in before.err:
                    before = await controller.does("fabric", "list", "--json")
            assert before.code == 0
            assert before.err.startswith("note: the controller's store is away: this is of ")
            assert [one["name"] for one in before.json] == ["fabrics/pod"]
            refused = await controller.does("fabric", "link", "l0,s0", "drained")
            assert refused.code == 2
            assert "(try again in 1 s)" in refused.err
            redis.start()
            async with asyncio.timeout(PATIENCE):
                while (await controller.does("fabric", "list")).err:
                    pass
            done = await controller.does("fabric", "link", "l0,s0", "drained")
            assert (done.code, done.err) == (0, "")
