"""Fabrics that real programs find or draw: ibnetdiscover on ibsim, lldpd, and Graphviz."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from heddle_controller.importers import dot_text, load_fabric
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.files.fabric_file import fabric_document, parse_fabric
from heddle_emulator.topology import clos
from tests.bench import opensm
from tests.integration.labbing import fresh_name
from tests.property.test_fabric_forms import joined
from tests.support.needs import missing
from tests.support.operating import heddle
from tests.support.waiting import wait_until

LOCKED = Path("/run/lldpd")
"""lldpd's chroot folder; its sockets are here because it cannot enter folders of root."""
CABLES = [("leaf0", "spine0"), ("leaf0", "spine0"), ("leaf1", "spine0"), ("leaf0", "h0"),
          ("leaf1", "h1"), ("leaf0", "h2")]  # fmt: skip


def _needed(*programs: str) -> None:
    lacking = [name for name in programs if shutil.which(name) is None]
    if lacking:
        missing(f"{', '.join(lacking)}: .ci/setup test installs them")


def test_a_subnet_that_ibnetdiscover_finds(tmp_path: Path) -> None:
    """Each cable of a simulated subnet becomes a link, and hosts and tiers are found."""
    _needed("ibnetdiscover", "ibsim")
    if opensm.missing():
        missing(opensm.missing())
    fabric = clos(leaves=4, spines=3, nics_per_leaf=4, nics_per_host=2, parallel=2)
    path = tmp_path / "subnet.txt"
    path.write_text(opensm.discovered(fabric))
    out = tmp_path / "fabric.json"
    done = heddle("fabric", "import", path, "--out", out)
    assert done.code == 0, done.err
    found = load_fabric(out)
    assert joined(found) == joined(fabric)
    for kind in NodeKind:
        assert len(found.rows_of_kind(kind)) == len(fabric.rows_of_kind(kind))
    assert set(found.structure.links.gbps.tolist()) == {10.0}  # 4xSDR is all that ibsim has


@contextmanager
def _machines(folder: Path) -> Iterator[dict[str, Path]]:
    """Make a cabled namespace with lldpd for each machine; give lldpd's sockets by machine."""
    lab = fresh_name()
    names = sorted({name for ends in CABLES for name in ends})
    with ExitStack() as stack:
        for name in names:
            _run("ip", "netns", "add", f"{lab}-{name}")
            stack.callback(_run, "ip", "netns", "del", f"{lab}-{name}")
        for number, (a, b) in enumerate(CABLES):
            ends = (f"p{number}", "netns", f"{lab}-{b}")
            _run("ip", "-n", f"{lab}-{a}", "link", "add", f"p{number}", "type", "veth",
                 "peer", "name", *ends)  # fmt: skip
            for name in (a, b):
                _run("ip", "-n", f"{lab}-{name}", "link", "set", f"p{number}", "up")
        sockets = {}
        for name in names:
            named = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', name]
            inside = ["ip", "netns", "exec", f"{lab}-{name}", *named]
            if not name.startswith("h"):
                _run(*inside, "sysctl", "-qw", "net.ipv4.ip_forward=1")
            sockets[name] = LOCKED / f"{lab}-{name}.sock"
            stack.callback(sockets[name].unlink, missing_ok=True)
            settings = folder / f"{name}.conf"
            settings.write_text(f"configure system hostname {name}\n")
            command = ["lldpd", "-d", "-u", str(sockets[name]), "-O", str(settings)]
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            process = subprocess.Popen([*inside, *command], stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        yield sockets


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


def _seen(socket: Path) -> dict[str, Any]:
    done = subprocess.run(
        ["lldpctl", "-u", str(socket), "-f", "json"], capture_output=True, text=True, check=False
    )
    found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    return found


def _count(told: dict[str, Any]) -> int:
    interfaces = told.get("lldp", {}).get("interface", [])
    return len(interfaces) if isinstance(interfaces, list) else 1


def _neighbours(sockets: dict[str, Path], name: str) -> dict[str, Any]:
    """Return what the lldpd of a machine tells, once it sees the machine's neighbours.

    Each lldpd is asked to announce itself now. By itself it may not for 30 s, whatever the
    interval that it is given. It begins paused until it has read its settings, and it pauses again
    for good if it is asked anything in that moment. So it is asked to resume each time.
    """
    wanted = sum(name in ends for ends in CABLES)
    found: dict[str, Any] = {}

    def sees() -> bool:
        for socket in sockets.values():
            for word in ("resume", "update"):
                ask = ["lldpcli", "-u", str(socket), word]
                subprocess.run(ask, capture_output=True, check=False)
        found.clear()
        found.update(_seen(sockets[name]))
        return _count(found) == wanted

    wait_until(sees, f"{name} to tell of {wanted} neighbours")
    return found


def test_neighbours_that_lldpd_finds(tmp_path: Path) -> None:
    """Each cable becomes one link, whether all machines report or the leaves alone."""
    _needed("lldpd", "lldpctl", "ip")
    if os.geteuid() != 0:
        missing("root, for network namespaces")
    LOCKED.mkdir(exist_ok=True)
    told: dict[str, Any] = {}
    with _machines(tmp_path) as sockets:
        for name in sockets:
            told[name] = _neighbours(sockets, name)
    path = tmp_path / "lldp.json"
    wanted_links = sorted(tuple(sorted(ends)) for ends in CABLES)
    for machines in (told, {name: one for name, one in told.items() if name.startswith("leaf")}):
        path.write_text(json.dumps(machines))
        found = load_fabric(path)
        assert joined(found) == wanted_links
        kinds = found.structure.nodes.kind
        assert {
            name: NodeKind(int(kinds[row])).name for name, row in found.structure.index.items()
        } == {
            "h0": "NIC",
            "h1": "NIC",
            "h2": "NIC",
            "leaf0": "LEAF",
            "leaf1": "LEAF",
            "spine0": "SPINE",
        }


@pytest.mark.parametrize("odd", ["plain", 'quo"te', "back\\", "\x1b[31m", "l\\Nl", "é:\n<b>"])
def test_graphviz_draws_a_fabric(odd: str) -> None:
    """Graphviz reads all nodes, links and labels, whatever the names contain."""
    _needed("dot")
    fabric = clos(leaves=2, spines=2, nics_per_leaf=2, nics_per_host=1)
    told = fabric_document(fabric)
    old = told["nodes"][-1]["id"]
    told = json.loads(json.dumps(told).replace(json.dumps(old), json.dumps(odd)))
    named: Fabric = parse_fabric(told, "test")
    done = subprocess.run(
        ["dot", "-Tdot_json"], input=dot_text(named), capture_output=True, text=True, check=True
    )
    drawn = json.loads(done.stdout)
    nodes = [one["label"] for one in drawn["objects"] if "nodes" not in one and "label" in one]
    assert len(nodes) == fabric.node_count
    assert len(drawn["edges"]) == fabric.link_count
    assert "\x1b" not in done.stdout
    assert not done.stderr
