"""deploy/TWO-SWITCHES.md is true: its commands are run for each machine, in namespaces."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from heddle_emulator.netns import mark, witness
from tests.integration.labbing import fresh_name, require_lab
from tests.support.waiting import PATIENCE, wait_until

PAGE = Path(__file__).resolve().parents[2] / "deploy" / "TWO-SWITCHES.md"
BLOCK = re.compile(
    r"<!-- on (?P<nodes>[a-z0-9 ]+?)(?:, (?P<how>[a-z ]+)|: (?P<file>\S+))? -->\n"
    r"```\w*\n(?P<text>.*?)```",
    re.DOTALL,
)
CABLES = [
    (("leaf0", "swp1"), ("leaf1", "swp1")),
    (("leaf0", "swp2"), ("leaf1", "swp2")),
    (("leaf0", "swp3"), ("h0", "eth1")),
    (("leaf0", "swp4"), ("h2", "eth1")),
    (("leaf1", "swp3"), ("h1", "eth1")),
    (("leaf1", "swp4"), ("h3", "eth1")),
]
MANAGEMENT = {"leaf0": 2, "leaf1": 3, "h0": 10, "h1": 11, "h2": 12, "h3": 13}
FRR = Path("/usr/lib/frr")
PORT_OF_KEY = {"0": "swp1", "1": "swp2"}
Seen = dict[tuple[str, str], Counter[tuple[str, str]]]
"""Packets by source address and port, and then by switch and interface."""


@dataclass(frozen=True)
class Machines:
    """The machines as the page expects them: cabled, with management addresses."""

    lab: str
    folder: Path
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """Processes that run until the machines are removed."""

    def space(self, node: str) -> str:
        """Return the namespace of a machine."""
        return mark.namespace(self.lab, node)

    def here(self, node: str, text: str) -> str:
        """Return text of the page with the folders that a machine has in the test."""
        own = self.folder / node
        text = text.replace("/opt/heddle/bin", str(Path(sys.executable).parent))
        for path in ("/etc/heddle", "/var/lib/heddle", "/run/heddle/", "/etc/frr"):
            text = text.replace(path, str(own) + path)
        return text

    def command(self, node: str, text: str) -> list[str]:
        """Return the command that runs text as a script on a machine."""
        return ["ip", "netns", "exec", self.space(node), "bash", "-euc", self.here(node, text)]

    def type(self, node: str, text: str) -> subprocess.CompletedProcess[str]:
        """Run text on a machine, and wait for its end."""
        return subprocess.run(
            self.command(node, text),
            env={**os.environ, "HOST": node},
            cwd=self.folder / node,
            capture_output=True,
            text=True,
            check=False,
        )

    def must(self, node: str, text: str) -> str:
        """Run text on a machine, which must succeed, and return its output."""
        done = self.type(node, text)
        assert done.returncode == 0, f"{node}: {text}\n{done.stdout}{done.stderr}{self.said()}"
        return done.stdout

    def until(self, node: str, text: str) -> None:
        """Run text on a machine again and again until it succeeds."""
        try:
            wait_until(lambda: self.type(node, text).returncode == 0, f"{node}: {text}")
        except AssertionError as error:
            last = self.type(node, text)
            raise AssertionError(f"{error}\n{last.stdout}{last.stderr}{self.said()}") from error

    def stay(self, node: str, text: str) -> None:
        """Start text on a machine, where it runs until the machines are removed."""
        with (self.folder / node / "stays.log").open("ab") as log:
            program = subprocess.Popen(
                self.command(node, text),
                env={**os.environ, "HOST": node},
                cwd=self.folder / node,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.running.append(program)

    def said(self) -> str:
        """Return the last output of the processes that stay, of every machine."""
        logs = sorted(self.folder.glob("*/stays.log"))
        return "".join(f"\n{log.parent.name}: {log.read_text()[-2000:]}" for log in logs)

    def seen(self) -> Seen:
        """Return the packets to RoCE's port that the switches have forwarded."""
        found: Seen = {}
        for switch in ("leaf0", "leaf1"):
            told = json.loads(self.must(switch, f"nft -j list set ip {witness.TABLE} seen"))
            (one,) = [part["set"] for part in told["nftables"] if "set" in part]
            for element in one.get("elem", []):
                source, _, port, to_port, interface = element["elem"]["val"]["concat"]
                if int(to_port) == 4791:
                    where = found.setdefault((source, str(port)), Counter())
                    where[switch, interface] += element["elem"]["counter"]["packets"]
        return found


@contextmanager
def machines() -> Iterator[Machines]:
    """Six machines and a management network, all removed afterwards."""
    require_lab()
    claim = mark.claim(fresh_name())
    made = Machines(claim.lab, claim.folder)
    lines = [f"netns add {made.space(node)}" for node in ("mgmt", *MANAGEMENT)]
    for ends in CABLES:
        (one, port), (other, far) = ends
        a, b = made.space(one), made.space(other)
        lines.append(f"link add name {port} netns {a} type veth peer name {far} netns {b}")
    for node in MANAGEMENT:
        a, b = made.space(node), made.space("mgmt")
        lines.append(f"link add name eth0 netns {a} type veth peer name {node} netns {b}")
    try:
        subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
        for node in ("mgmt", *MANAGEMENT):
            for path in ("etc/heddle", "etc/frr", "run", "var/lib"):
                (made.folder / node / path).mkdir(parents=True)
        members = "; ".join(f"ip link set {node} master br0 up" for node in MANAGEMENT)
        made.must("mgmt", f"ip link add br0 type bridge; ip link set br0 up; {members}")
        for node, number in MANAGEMENT.items():
            made.must(node, f"ip link set lo up; ip addr add 192.0.2.{number}/24 dev eth0")
            made.must(node, "ip link set eth0 up")
        yield made
    finally:
        mark.remove(claim)  # this ends whatever runs in its namespaces
        for program in made.running:
            program.wait()


def start_frr(m: Machines, switch: str) -> None:
    """Do what ``systemctl restart frr`` does with the file of the page."""
    folder = m.folder / switch / "frr"
    folder.mkdir()
    shutil.chown(folder, "frr", "frr")
    for daemon in ("zebra", "bgpd"):
        m.must(
            switch,
            f"{FRR / daemon} -d -u frr -g frr -P 0 -f /dev/null -i {folder}/{daemon}.pid"
            f" -z {folder}/zserv.sock --vty_socket {folder} --log file:{folder}/{daemon}.log",
        )
    m.must(switch, f"vtysh --vty_socket {folder} -f /etc/frr/frr.conf")


def typed(m: Machines, block: re.Match[str]) -> None:
    """Run one block of the page on its machines, or write it to its file there."""
    for node in block["nodes"].split():
        if block["file"]:
            Path(m.here(node, block["file"])).write_text(m.here(node, block["text"]))
            if block["file"].startswith("/etc/frr"):
                start_frr(m, node)
        elif block["how"] == "stays":
            m.stay(node, block["text"])
        elif block["how"] == "until it succeeds":
            m.until(node, block["text"])
        else:
            assert block["how"] is None, block[0]
            m.must(node, block["text"])
        if "issue controller" in block["text"]:
            hand_over(m)


def hand_over(m: Machines) -> None:
    """Bring each machine its certificate, as the page says in words."""
    made = m.folder / "h0/etc/heddle"
    for node in MANAGEMENT:
        for name in ("ca.crt", f"{node}.crt", f"{node}.key"):
            if node != "h0":
                shutil.copy(made / name, m.folder / node / "etc/heddle" / name)


def planned(m: Machines) -> dict[tuple[str, str], tuple[str, str]]:
    """Return the leaf and interface that each QP is to leave by, by source address and port."""
    found = {}
    text = ". /etc/heddle/ann.env; /opt/heddle/bin/heddle show routes --json"
    routes = [json.loads(line) for line in m.must("h0", text).splitlines()]
    ways: dict[str, Any] = {route["flow"]: route for route in routes}
    for host in ("h0", "h1", "h2", "h3"):
        document = json.loads((m.folder / host / "run/heddle/ports/ring.json").read_text())
        for flow in document["flows"]:
            for path in ways[flow["flow"]]["paths"]:
                first, last = int(path.get("first_qp", 0)), int(path.get("last_qp", 0))
                for port in flow["ports"][first : last + 1]:
                    leaf, cable = path["nodes"][1], PORT_OF_KEY[path["keys"][1]]
                    found[flow["source_address"], str(port)] = leaf, cable
    return found


def since(seen: Seen, before: Seen) -> Seen:
    """Return the packets counted since an earlier count."""
    none: Counter[tuple[str, str]] = Counter()
    return {qp: count - before.get(qp, none) for qp, count in seen.items()}


@pytest.mark.timeout(4 * PATIENCE)
def test_the_page_is_typed_and_true() -> None:
    """All commands succeed; each QP takes its planned cable, and the other one when that is cut."""
    text = PAGE.read_text()
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == len(re.findall(r"^<!--", text, re.MULTILINE))
    send = next(at for at, block in enumerate(blocks) if "send.py" in block["text"])
    cut = next(at for at, block in enumerate(blocks) if "swp1 down" in block["text"])
    with machines() as m:
        for block in blocks[:send]:
            typed(m, block)
        for host in ("h1", "h2", "h3"):
            wait_until((m.folder / host / "run/heddle/ports/ring.env").exists, f"ports of {host}")
        for switch in ("leaf0", "leaf1"):
            m.must(switch, f"nft -f - <<'END'\n{witness.script()}\nEND")
        for block in blocks[send:cut]:
            typed(m, block)
        wanted, seen = planned(m), m.seen()
        assert len(wanted) == 8
        assert {qp: seen[qp][where] for qp, where in wanted.items()} == dict.fromkeys(wanted, 100)
        crossed = Counter(wanted.values())
        assert set(crossed.values()) == {2}, crossed  # each cable has one flow of two QPs each way
        for block in blocks[cut : cut + 2]:
            typed(m, block)
        before = m.seen()
        for host in ("h0", "h1", "h2", "h3"):
            m.must(host, "python3 /etc/heddle/send.py")
        after = since(m.seen(), before)
        for qp, (leaf, _) in wanted.items():
            far = "leaf1" if leaf == "leaf0" else "leaf0"
            assert after[qp][leaf, "swp2"] == 100, (qp, after[qp])
            assert sum(count for (node, _), count in after[qp].items() if node == far) == 100
        for block in blocks[cut + 2 :]:
            typed(m, block)
