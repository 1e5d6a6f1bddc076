"""A lab cable that has lost three quarters of its speed is noticed, counted and shown."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from heddle_emulator.netns import tools
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.layout import MGMT
from heddle_emulator.netns.probe.handle import Probe, probe_flow
from heddle_emulator.netns.programs import Programs
from heddle_emulator.netns.up import introduce, scrape, value
from tests.integration.labbing import small_lab
from tests.support.waiting import wait_until

HEDDLE = Path(sys.executable).with_name("heddle")
UDP = 4791


def test_a_slow_cable_is_shown_to_operators() -> None:
    """A cable at a quarter of its speed is shown as slow, and the other spine's is not."""
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
        with Probe(lab, flows):  # without packets the link is not judged
            _wait(programs, "l0", "heddle_agent_links", state="slow")
            _wait(programs, MGMT, "heddle_unwell_links", reason="slow")
            _wait(programs, MGMT, "heddle_unwell_links")  # and no other reason
            shown: list[str] = []
            wait_until(lambda: _add_slow_lines(lab, programs, shown), "the line")
        (line,) = shown
        assert "l0" in line
        assert "s0" in line
        assert "slow, 2" in line  # 20 to 29 %


def _add_slow_lines(lab: Lab, programs: Programs, lines: list[str]) -> list[str]:
    """Add the lines about slow links that operators see; return all lines."""
    programs.check()
    words = [str(HEDDLE), "--server", programs.api, "fabric", "show"]
    shown = tools.run_inside(lab.spaces[MGMT], words)
    lines += [line for line in shown.splitlines() if "of its speed" in line]
    return lines


def _wait(programs: Programs, node: str, name: str, **labels: str) -> None:
    """Wait until a program's metric is exactly 1."""

    def counted() -> bool:
        programs.check()
        return value(scrape(programs, node), name, **labels) == 1

    wait_until(counted, name)
