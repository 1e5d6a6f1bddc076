"""Pictures of the web page for the documentation; `make docs` sets where they go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from heddle_controller.model.job import Collective, Group, Job, Operation, Parallelism
from heddle_emulator.client import Client
from heddle_emulator.fleet import Controller, Fleet
from heddle_emulator.topology import clos
from tests.integration.browsing import browser
from tests.support.chromium import browsing
from tests.support.looking import read_png
from tests.support.waiting import PATIENCE

POD = clos(leaves=4, spines=2, nics_per_leaf=4, nics_per_host=4, name="pod")
JOB = Job(
    "slow", ("l0-h0", "l1-h0", "l2-h0", "l3-h0"), 4, Parallelism(dp=16),
    (Collective(Operation.ALL_TO_ALL, Group.WORLD, 1 << 30),),
)  # fmt: skip
VIEWS = {
    "overview": ("", "document.querySelector('#verdict')"),
    "map": ("/map", "document.querySelector('[data-painted]')"),
    "job": ("/job?id=slow", "document.querySelector('#guilty')"),
    "plans": ("/plans", "document.querySelectorAll('tbody tr').length"),
}
"""For each picture: the view, and what is true once it is drawn."""


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """The folder for the pictures."""
    folder = Path(os.environ.get("HEDDLE_PICTURES", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


async def test_every_picture_of_the_site_is_drawn(tmp_path: Path, pictures: Path) -> None:
    """A real controller with agents draws each view without an error, and no picture is blank."""
    browser()
    async with (
        Controller(tmp_path, "--web-port=0") as controller,
        Client(controller.api, "fabrics/f1") as client,
    ):
        await client.put_fabric(POD)
        async with Fleet(POD, [controller.api], name="fabrics/f1", notices=True) as fleet:
            await fleet.connected(PATIENCE)
            await client.submit(JOB)
            await client.programmed_jobs([JOB.name], PATIENCE)
            async with browsing(tmp_path) as page:
                await page.window(1200, 800)
                for name, (view, drawn) in VIEWS.items():
                    await page.open(f"{controller.page}fabrics/f1{view}")
                    await page.until(drawn)
                    await page.until("document.querySelector('#live').textContent === 'Live'")
                    picture = await page.picture()
                    pixels = read_png(picture)
                    assert pixels.shape[:2] == (800, 1200)
                    assert len({tuple(row) for row in pixels.reshape(-1, pixels.shape[-1])}) > 8
                    (pictures / f"{name}.png").write_bytes(picture)
                assert page.console == []
