"""The process from which a lab's agents are forked."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle_emulator.netns import mark
from tests.integration.labbing import fresh_name, require_lab

SLOW = """
import time
from heddle_emulator.netns import warm

def slow(space, enter=warm.enter):
    time.sleep(0.3)
    enter(space)

warm.enter = slow
warm.main()
"""


@pytest.fixture
def spaces() -> Iterator[list[str]]:
    """Two namespaces of a lab."""
    require_lab()
    taken = mark.claim(fresh_name())
    made = [mark.namespace(taken.lab, node) for node in ("mgmt", "l0")]
    try:
        for space in made:
            subprocess.run(["ip", "netns", "add", space], check=True)
        yield made
    finally:
        mark.remove(taken)


def test_an_agent_is_its_labs_as_soon_as_its_process_is_known(
    spaces: list[str], tmp_path: Path
) -> None:
    """An agent is in its namespace when its process id is given, though entering takes a while.

    Otherwise whoever looks for it there would believe that it has ended.
    """
    mgmt, space = spaces
    options = ("--fabric=fabrics/f", "--switch=l0", "--controller=127.0.0.1:1", "--insecure")
    told = {
        "name": "agent l0",
        "space": space,
        "log": str(tmp_path / "log"),
        "env": {},
        "arguments": ["run", *options, "--link=s0", "--metrics-port=0"],
    }
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, mgmt],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as warm:
        assert warm.stdin is not None
        assert warm.stdout is not None
        warm.stdin.write(json.dumps(told) + "\n")
        warm.stdin.flush()
        process = int(warm.stdout.readline())
        assert process in mark.processes([space])
        warm.stdin.close()
        assert warm.wait() == 0
