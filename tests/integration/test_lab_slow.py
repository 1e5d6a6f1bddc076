"""A cable that lost three quarters of its speed, in a lab: noticed, told, and shown."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from heddle_emulator.netns import tools
from heddle_emulator.netns.layout import MGMT
from heddle_emulator.netns.probe.handle import Probe, probe_flow
from heddle_emulator.netns.programs import Programs
from heddle_emulator.netns.scrape import scrape, value
from heddle_emulator.netns.up import introduce
from tests.integration.labbing import small_lab
from tests.support.waiting import wait_until

HEDDLE = Path(sys.executable).with_name("heddle")
UDP = 4791


def test_a_slow_cable_is_shown_to_operators() -> None:
    """It carries a quarter of its speed while packets wait for it; the other spine's is well."""
    with small_lab(programs=True, rate_mbit=20.0) as (lab, programs):
        assert programs is not None
        asyncio.run(introduce(programs))
        limit = ("rate", "5mbit", "ceil", "5mbit", "prio", "1")
        change = ("tc", "class", "change", "dev", "s0", "parent", "1:1", "classid", "1:20", "htb")
        tools.run_inside(lab.spaces["l0"], [*change, *limit])
        flows = [
            probe_flow(lab, ("l0-h0-n0", "l1-h0-n0"), (49152 + n, UDP), 100.0, size=1400)
            for n in range(16)
        ]
        with Probe(lab, flows) as probe:
            _wait(programs, MGMT, "heddle_unwell_links", reason="slow")
            probe.stop()
        assert value(scrape(programs, "l0"), "heddle_agent_links", state="slow") == 1
        assert value(scrape(programs, MGMT), "heddle_unwell_links") == 1
        words = [str(HEDDLE), "--server", programs.api, "fabric", "show"]
        shown = tools.run_inside(lab.spaces[MGMT], words)
        (line,) = [line for line in shown.splitlines() if "of its speed" in line]
        assert "l0" in line
        assert "s0" in line
        assert "slow, 2" in line  # 20 to 29 %


def _wait(programs: Programs, node: str, name: str, **labels: str) -> None:
    """Until a program counts something."""

    def counted() -> float:
        programs.check()
        return value(scrape(programs, node), name, **labels)

    wait_until(counted, name)
