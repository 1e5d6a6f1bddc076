"""What the programs of a lab say of themselves: Prometheus metrics, read inside ``mgmt``."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request

from heddle_emulator.netns import LabError
from heddle_emulator.netns.kernel import inside
from heddle_emulator.netns.layout import MGMT
from heddle_emulator.netns.programs import METRICS_PORT, Programs

_SECONDS = 5.0
_POLL_SECONDS = 0.05
_LINE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')

Samples = list[tuple[str, dict[str, str], float]]
"""Name, labels and value."""


def scrape(programs: Programs, node: str) -> Samples:
    """The metrics of a node's program; none where it does not answer."""
    lab = programs.lab
    address = f"http://{lab.layout.management(node)}:{METRICS_PORT}/metrics"

    def read() -> str:
        with urllib.request.urlopen(address, timeout=_SECONDS) as answer:
            return str(answer.read().decode())

    try:
        text = inside(lab.spaces[MGMT], read)
    except (OSError, urllib.error.URLError):
        return []
    matches = (_LINE.fullmatch(line) for line in text.splitlines())
    return [(m[1], dict(_LABEL.findall(m[2] or "")), float(m[3])) for m in matches if m]


def value(samples: Samples, name: str, **labels: str) -> float:
    """Sum of the samples of that name that have these labels."""
    return sum(
        number
        for metric, has, number in samples
        if metric == name and labels.items() <= has.items()
    )


def wait_links_up(programs: Programs, seconds: float) -> None:
    """Wait until every agent that runs believes all its cables up.

    Raises:
        LabError: one of them does not after so long.
    """
    deadline = time.monotonic() + seconds
    for switch in programs.lab.layout.switches:
        wanted = len(programs.lab.layout.ports[switch])
        while programs.alive(switch) and _links_up(scrape(programs, switch)) < wanted:
            if time.monotonic() > deadline:
                raise LabError(f"the agent of {switch} still believes a cable down")
            time.sleep(_POLL_SECONDS)


def _links_up(samples: Samples) -> float:
    return value(samples, "heddle_agent_links", state="up")


def wait_introduced(programs: Programs, seconds: float) -> None:
    """Wait until every agent has a session, and has met its peers.

    Raises:
        LabError: one of them does not after so long, or has ended.
    """
    deadline = time.monotonic() + seconds
    for switch in programs.lab.layout.switches:
        while not _introduced(scrape(programs, switch)):
            programs.check()
            if time.monotonic() > deadline:
                raise LabError(f"the agent of {switch} knows no controller or not all its peers")
            time.sleep(_POLL_SECONDS)


def _introduced(samples: Samples) -> bool:
    peers = "heddle_agent_peers"
    known = value(samples, peers, state="known")
    connected = value(samples, "heddle_agent_connected")
    return connected > 0 and known > 0 and value(samples, peers, state="introduced") >= known
