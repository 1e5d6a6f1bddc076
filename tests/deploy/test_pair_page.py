"""deploy/debian/README.md leads from bare systems to a running pair of controllers with agents."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.bare_debian import Machine, layer
from tests.support.waiting import PATIENCE, wait_until

PAGE = Path(__file__).resolve().parents[2] / "deploy" / "debian" / "README.md"
BLOCK = re.compile(
    r"<!-- on (?P<nodes>[a-z0-9 ]+?)(?:, (?P<how>[a-z ]+)|: (?P<file>\S+))? -->\n"
    r"```\w*\n(?P<text>.*?)```",
    re.DOTALL,
)
ADDRESSES = {"c1": 11, "c2": 12, "leaf0": 21, "leaf1": 22}
SYSTEMCTL = re.compile(
    r"^systemctl (?P<verb>enable --now|start|stop) (?P<unit>\S+)\n", re.MULTILINE
)
SPACE = "heddle-pair-page"


@pytest.fixture
def machines(base: Path, debs: dict[str, Path], tmp_path: Path) -> Iterator[dict[str, Machine]]:
    """The machines of the page, bare, with the packages; one namespace has all their addresses."""
    subprocess.run(["ip", "netns", "add", SPACE], check=True)
    with ExitStack() as stack:
        stack.callback(subprocess.run, ["ip", "netns", "delete", SPACE], check=True)
        lines = [f"address add 192.0.2.{number}/32 dev lo" for number in ADDRESSES.values()]
        subprocess.run(
            ["ip", "-netns", SPACE, "-batch", "-"],
            input="\n".join(["link set lo up", *lines]), text=True, check=True,
        )  # fmt: skip
        found = {n: stack.enter_context(layer(base, tmp_path, n, SPACE)) for n in ADDRESSES}
        for machine in found.values():
            for deb in debs.values():
                shutil.copy(deb, machine.path("/root"))
        yield found


def typed(machines: dict[str, Machine], block: re.Match[str]) -> None:
    """Run one block of the page on its machines."""
    for node in block["nodes"].split():
        machine = machines[node]
        if block["file"]:
            machine.path(block["file"]).write_text(block["text"])
        elif block["how"] == "until it succeeds":
            until_it_succeeds(machine, block["text"])
        else:
            assert block["how"] in (None, "online"), block[0]
            if text := SYSTEMCTL.sub("", block["text"]):
                machine.must(text, online=block["how"] == "online")
            for done in SYSTEMCTL.finditer(block["text"]):
                if done["verb"] == "stop":
                    assert machine.stop(done["unit"]) == 0
                else:
                    machine.start(done["unit"])


def until_it_succeeds(machine: Machine, text: str) -> None:
    """Run the text again and again until it succeeds."""
    wait_until(lambda: machine.type(text).returncode == 0, text)


def hand_over(machines: dict[str, Machine]) -> None:
    """Bring each machine its certificate, which the page only describes in words."""
    made = machines["c1"].path("/etc/heddle/tls")
    for node in ("c2", "leaf0", "leaf1"):
        for name in ("ca.crt", f"{node}.crt", f"{node}.key"):
            shutil.copy(made / name, machines[node].path("/etc/heddle/tls"))


@pytest.mark.timeout(8 * PATIENCE)
def test_the_page_is_typed_and_true(machines: dict[str, Machine]) -> None:
    """Every command succeeds, and with one controller ended the job avoids a lost cable."""
    text = PAGE.read_text()
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == len(re.findall(r"^<!--", text, re.MULTILINE))
    try:
        for block in blocks:
            typed(machines, block)
            if "issue c1" in block["text"]:
                hand_over(machines)
    except AssertionError as error:
        said = "".join(machine.said() for machine in machines.values())
        raise AssertionError(f"{error}{said}") from error
    show = ". /etc/heddle/ann.env; heddle show routes --json"
    routes = machines["c1"].must(show).splitlines()
    assert len(routes) == 2
    assert all('"keys": ["0", "0", "0"]' in each or '"0","0","0"' in each for each in routes), (
        routes
    )
    wait_until(
        lambda: "leading" in machines["c2"].said() or "leading" in machines["c1"].said(), "a leader"
    )
