"""``heddle fabric``: import, export, show, watch, and states of links and switches."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path

from heddle_controller.model.fabric import State
from heddle_controller.model.files.fabric_file import (
    fabric_document,
    load_fabric_file,
    save_fabric_file,
)
from heddle_emulator.topology import clos
from tests.support.operating import Operator, Outcome, heddle, operating, printed
from tests.support.store_samples import plain
from tests.support.waiting import until

FABRIC = clos(leaves=2, spines=2, nics_per_leaf=4, nics_per_host=2, parallel=2, name="pod")


def saved(path: Path) -> Path:
    """Save the fabric as a file; return its path."""
    save_fabric_file(FABRIC, path / "fabric.json.gz")
    return path / "fabric.json.gz"


async def test_a_fabric_is_imported_shown_and_exported(tmp_path: Path) -> None:
    """A fabric has the name in its file, and is exported as it was imported."""
    async with operating(tmp_path) as o:
        done = await o.does("fabric", "import", saved(tmp_path))
        assert done.code == 0, done.err
        assert ["name", "pod"] in done.lines
        assert ["nodes", "8", "nic,", "2", "leaf,", "2", "spine"] in done.lines
        assert ["links", "8", "leaf-spine,", "8", "nic-leaf"] in done.lines
        out = tmp_path / "out.json"
        assert (await o.does("fabric", "export", "--out", out)).code == 0
        assert plain(await asyncio.to_thread(load_fabric_file, out)) == plain(FABRIC)
        printed = await o.does("fabric", "export")
        assert json.loads(printed.out) == json.loads(out.read_text())
        listed = await o.does("fabric", "list")
        assert listed.lines[0] == ["NAME", "TITLE", "UPDATED"]
        assert listed.lines[1][:2] == ["pod", "pod"]


def test_a_fabric_is_converted_without_a_server(tmp_path: Path) -> None:
    """``fabric import --out`` writes a table of hosts as a fabric file; - is standard output."""
    table = tmp_path / "topo.csv"
    table.write_text("ip,ASW,PSW\nh1,a1,p1\nh2,a1,p1\nh3,a2,p1\n")
    out = tmp_path / "fabric.json.gz"
    words = ("fabric", "import", table, "--map", "host=ip,leaf=ASW,spine=PSW")
    done = heddle(*words, "--nics-per-host", "2", "--out", out)
    assert done.code == 0, done.err
    assert load_fabric_file(out).rows_of_kind(0).size == 6  # type: ignore[arg-type] # NodeKind.NIC
    assert gzip.decompress(out.read_bytes()).startswith(b"{")
    shown = heddle(*words, "--nics-per-host", "2", "--out", "-")
    assert json.loads(shown.out) == json.loads(gzip.decompress(out.read_bytes()))


def test_a_name_that_cannot_be_used_is_told_with_its_source(tmp_path: Path) -> None:
    """The error says whether the option, the chosen fabric or the file has the bad name."""
    file = tmp_path / "fabric.json"
    save_fabric_file(clos(leaves=2, spines=2, nics_per_leaf=2, name="two words"), file)
    for words, text in (
        ((), f"{file}: name (give another by --name): 'two words' is not a valid id"),
        (("--name", "a b"), "--name: 'a b' is not a valid id"),
        (("--fabric", "b c"), "--fabric: 'b c' is not a valid id"),
    ):
        done = heddle("fabric", "import", file, *words)
        assert done.code == 2, words
        assert text in done.err, done.err


async def test_links_and_switches_are_set(tmp_path: Path) -> None:
    """States of links and switches are set; a parallel link is named by its key.

    What is not up is shown, and with ``--links`` all links are.
    """
    async with operating(tmp_path) as o:
        await o.does("fabric", "import", saved(tmp_path))
        done = await o.does("fabric", "link", "s0,l1,1", "drained")
        assert done.lines[1][:4] == ["l1,s0,1", "400", "drained", "up"]
        assert (await o.does("fabric", "switch", "s1", "down")).code == 0
        fabric = (await o.s.store.get_fabric("pod")).fabric
        (row,) = fabric.find_links("l1", "s0", 1)
        assert fabric.link_state[row] == State.DRAINED
        assert fabric.node_state[fabric.structure.index["s1"]] == State.DOWN
        shown = await o.does("fabric", "show")
        assert ["switches", "not", "up", "s1", "(down)"] in shown.lines
        assert shown.lines[-1][0] == "l1,s0,1"
        every = await o.does("fabric", "show", "--links")
        assert len(every.lines) == FABRIC.link_count + 1


async def test_an_import_ends_no_drain(tmp_path: Path) -> None:
    """What is drained or down stays so, wherever it is in the file; a note names it.

    A state of the file counts, and what the file no longer has goes.
    """
    async with operating(tmp_path) as o:
        first = await o.does("fabric", "import", saved(tmp_path))
        assert first.err == ""
        await o.does("fabric", "link", "s0,l1,1", "drained")
        await o.does("fabric", "switch", "s1", "down")
        await o.does("fabric", "switch", "l0", "drained")
        document = fabric_document(FABRIC)
        document["nodes"] = [
            {**node, "state": "down"} if node["id"] == "l0" else node
            for node in reversed(document["nodes"])
        ]
        file = tmp_path / "again.json"
        file.write_text(json.dumps(document))
        again = await o.does("fabric", "import", file)
        assert again.code == 0, again.err
        assert ["links", "not", "up", "1"] in again.lines
        assert (
            "note: this stays as it is on the controller: s1 (down), l1,s0,1 (drained)" in again.err
        )
        fabric = (await o.s.store.get_fabric("pod")).fabric
        states = {
            switch: State(int(fabric.node_state[fabric.structure.index[switch]]))
            for switch in ("l0", "l1", "s0", "s1")
        }
        assert states == {"l0": State.DOWN, "l1": State.UP, "s0": State.UP, "s1": State.DOWN}
        assert [fabric.link_name(row) for row in fabric.link_state.nonzero()[0].tolist()] == [
            "l1,s0,1"
        ]
        document["nodes"] = [node for node in document["nodes"] if node["id"] not in ("s1", "l0")]
        kept = {node["id"] for node in document["nodes"]}
        document["edges"] = [e for e in document["edges"] if {e["source"], e["target"]} <= kept]
        document["nodes"] = [node for node in document["nodes"] if not node["id"].startswith("l0-")]
        document["edges"] = [e for e in document["edges"] if not e["source"].startswith("l0-")]
        file.write_text(json.dumps(document))
        fewer = await o.does("fabric", "import", file)
        assert fewer.code == 0, fewer.err
        assert "controller: l1,s0,1 (drained);" in fewer.err


async def test_json_is_for_programs(tmp_path: Path) -> None:
    """``--json`` before or after the command prints one document."""
    async with operating(tmp_path) as o:
        await o.does("fabric", "import", saved(tmp_path))
        for words in (("--json", "fabric", "show"), ("fabric", "show", "--json")):
            assert len((await o.does(*words)).json["nodes"]) == FABRIC.node_count
        link = (await o.does("fabric", "link", "l0,s0,0", "down", "--json")).json
        assert link["admin_state"] == "STATE_DOWN"
        listed = (await o.does("fabric", "list", "--json")).json
        assert [fabric["name"] for fabric in listed] == ["fabrics/pod"]


async def _watched_while_drained(o: Operator, seconds: int) -> Outcome:
    """Watch for these seconds, and drain a switch meanwhile.

    If the machine is too slow, the watch ends before the switch is drained.
    """
    watching = asyncio.create_task(o.does("fabric", "watch", "--seconds", str(seconds)))
    await until(lambda: printed() or watching.done(), "the fabric")
    await o.s.store.set_switch_state("pod", "s0", State.DRAINED)
    return await watching


async def test_a_watch_prints_changes_until_its_time_is_up(tmp_path: Path) -> None:
    """A watch prints each change, and exits with 0 when its time is up."""
    async with operating(tmp_path) as o:
        await o.does("fabric", "import", saved(tmp_path))
        done = await _watched_while_drained(o, 1)
        for seconds in (10, 100):  # a busy machine may need longer
            if len(done.out.splitlines()) < 2:
                await o.s.store.set_switch_state("pod", "s0", State.UP)
                done = await _watched_while_drained(o, seconds)
        assert done.code == 0
        assert done.out.splitlines() == ["fabric pod", "switch s0 wanted drained"]


async def test_refusals_are_one_line_and_exit_2(tmp_path: Path) -> None:
    """Each wrong name, file or folder is refused with one line and exit code 2."""
    async with operating(tmp_path) as o:
        assert "import one with" in (await o.does("fabric", "show")).err
        await o.does("fabric", "import", saved(tmp_path))
        for words, text in (
            (("link", "l0,s0", "down"), "give one of the keys 0, 1"),
            (("link", "l0", "down"), "write A,B or A,B,KEY"),
            (("link", "l0,l1", "down"), "does not exist"),
            (("switch", "nobody", "down"), "nobody"),
            (("import", saved(tmp_path), "--name", "a/b"), "--name"),
            (("import", tmp_path / "none.json"), "none.json"),
            (("export", "--out", tmp_path / "no" / "such" / "folder"), "cannot be written"),
        ):
            done = await o.does("fabric", *words)
            assert done.code == 2, words
            assert text in done.err, done.err
            assert len(done.err.splitlines()) == 1, done.err
            assert done.out == ""


async def test_with_several_fabrics_one_has_to_be_named(tmp_path: Path) -> None:
    """With several fabrics a command without ``--fabric`` is refused, and the error lists them."""
    async with operating(tmp_path) as o:
        for name in ("a", "b"):
            await o.does("fabric", "import", saved(tmp_path), "--name", name)
        for words in (("fabric", "show"), ("job", "list"), ("fabric", "link", "l0,s0,0", "up")):
            done = await o.does(*words)
            assert (done.code, "(a, b): name one by --fabric" in done.err) == (2, True)
        assert (await o.does("fabric", "show", "--fabric", "b")).lines[0] == ["name", "b"]
