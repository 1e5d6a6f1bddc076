"""``heddle plan --eos`` writes configuration for switches, and says what changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from heddle_controller.model.files.fabric_file import fabric_document
from heddle_emulator.topology import clos
from tests.support.operating import heddle


def _asked(tmp_path: Path, flows: list[str], document: dict[str, Any]) -> tuple[str, ...]:
    (tmp_path / "fabric.json").write_text(json.dumps(document))
    header = "flow,src,dst,gbps,job,phase"
    (tmp_path / "flows.csv").write_text("\n".join([header, *flows, ""]))
    told = {"--fabric": "fabric.json", "--flows": "flows.csv", "--eos": "text"}
    words = (word for name, file in told.items() for word in (name, str(tmp_path / file)))
    return ("plan", *words)


def test_texts_are_written_and_compared(tmp_path: Path) -> None:
    """Each switch has a text; the same plan again changes none, another plan changes some.

    Without addresses of links in the fabric nothing is written.
    """
    document = fabric_document(clos(leaves=2, spines=2, nics_per_leaf=2, nics_per_host=1))
    nics = [node["id"] for node in document["nodes"] if node["kind"] == "nic"]
    flows = [
        f"f{n},{a},{b},400,j,p" for n, (a, b) in enumerate(zip(nics[:2], nics[2:], strict=True))
    ]
    asked = _asked(tmp_path, flows, document)
    done = heddle(*asked)
    assert done.code == 2
    assert "has no target_address, which traffic is redirected to; give the edge" in done.err
    assert not (tmp_path / "text").exists()
    for row, node in enumerate(document["nodes"]):
        node["address"] = f"10.0.0.{row + 1}"
    for row, edge in enumerate(document["edges"]):
        edge |= {"source_address": f"10.1.0.{row + 1}", "target_address": f"10.2.0.{row + 1}"}
    asked = _asked(tmp_path, flows, document)
    done = heddle(*asked, "--json")
    assert done.code == 0, done.err
    switches = sorted(node["id"] for node in document["nodes"] if node["kind"] != "nic")
    assert sorted(json.loads(done.out)["rewritten"]) == switches
    texts = {path.stem: path.read_text() for path in (tmp_path / "text").glob("*.eos")}
    assert sorted(texts) == switches
    assert sum(text.count("redirect next-hop 10.") for text in texts.values()) >= 2
    again = heddle(*asked, "--json")
    assert json.loads(again.out)["rewritten"] == []
    assert not any(path.read_text() for path in (tmp_path / "text").glob("*.diff"))
    done = heddle(*_asked(tmp_path, flows[:1], document), "--json")
    changed = json.loads(done.out)["rewritten"]
    assert changed
    for switch in changed:
        told = (tmp_path / "text" / f"{switch}.eos.diff").read_text().splitlines()[2:]
        gone = [line[1:] for line in told if line.startswith("-")]
        assert set(gone) <= set(texts[switch].splitlines())


def test_a_refused_text_leaves_files_as_they_were(tmp_path: Path) -> None:
    """No file changes if a text cannot be made, or if the text before cannot be read.

    If the plan cannot be written, the next run still tells what changed.
    """
    document = fabric_document(clos(leaves=2, spines=2, nics_per_leaf=1, nics_per_host=1))
    nics = [node["id"] for node in document["nodes"] if node["kind"] == "nic"]
    flows = [f"f,{nics[0]},{nics[1]},400,j,p"]
    out = tmp_path / "plan.json"
    out.write_text("before")
    asked = _asked(tmp_path, flows, document)
    assert heddle(*asked, "--out", str(out)).code == 2
    for row, edge in enumerate(document["edges"]):
        edge |= {"source_address": f"10.1.0.{row + 1}", "target_address": f"10.2.0.{row + 1}"}
    asked = _asked(tmp_path, flows, document)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "s1.eos").write_bytes(b"\xff")
    assert heddle(*asked, "--out", str(out)).code == 2
    assert out.read_text() == "before"
    assert [path.name for path in (tmp_path / "text").iterdir()] == ["s1.eos"]
    (tmp_path / "text" / "s1.eos").unlink()
    assert heddle(*asked, "--out", str(tmp_path / "none" / "plan.json")).code == 2
    assert not [*(tmp_path / "text").iterdir()]
    assert heddle(*asked, "--out", str(out)).code == 0
    assert out.read_text() != "before"
