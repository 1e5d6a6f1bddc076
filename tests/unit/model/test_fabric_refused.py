"""Fabric files that are refused, with the record and the reason."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heddle_controller.model.errors import InputError
from heddle_controller.model.files.content import MEBIBYTE, read_json
from heddle_controller.model.files.fabric_file import load_fabric_file, parse_fabric

GOLDEN = Path(__file__).parents[2] / "golden" / "fabric.json"
Change = Callable[[dict[str, Any]], object]


def node(row: int, **fields: object) -> Change:
    """A change that replaces fields of one node."""
    return lambda document: document["nodes"][row].update(fields)


def edge(row: int, **fields: object) -> Change:
    """A change that replaces fields of one edge."""
    return lambda document: document["edges"][row].update(fields)


def without(part: str, row: int, field: str) -> Change:
    """A change that drops one field of one record."""
    return lambda document: document[part][row].pop(field)


def added(part: str, **fields: object) -> Change:
    """A change that adds a record."""
    return lambda document: document[part].append(fields)


FAULTS: dict[str, tuple[Change, str]] = {
    "no nodes": (lambda d: d.pop("nodes"), r"nodes: missing"),
    "no edges": (lambda d: d.pop("edges"), r"edges: missing"),
    "empty nodes": (lambda d: d.update(nodes=[]), r"nodes: is \[\]; give a list"),
    "nodes no list": (lambda d: d.update(nodes={}), r"nodes: is \{\}; give a list"),
    "node no object": (lambda d: d["nodes"].append(3), r"nodes\[\d+\]: is 3; give an object"),
    "directed": (lambda d: d.update(directed=True), r"directed: is true"),
    "duplicate node": (added("nodes", id="leaf1", kind="leaf"), r"node 'leaf1': .*used twice"),
    "1 and '1'": (
        lambda d: d["nodes"].extend([{"id": 1, "kind": "leaf"}, {"id": "1", "kind": "leaf"}]),
        r"node (1|'1'): .*used twice",
    ),
    "node without id": (without("nodes", 0, "id"), r"nodes\[0\]: has no id"),
    "empty id": (node(0, id=""), r"node '': id is empty"),
    "id a list": (node(0, id=["a"]), r"node \['a'\]: id is \['a'\]; give a string"),
    "gpu of another NIC": (
        lambda d: (
            d["nodes"].append({"id": "h1n1", "kind": "nic", "host": "h1", "gpu": 0}),
            d["edges"].append({"source": "h1n1", "target": "leaf1", "gbps": 400}),
        ),
        r"nic 'h1n1': serves gpu 0, as 'h1n0' does; give each its own",
    ),
    "gpu beyond the host": (
        node(1, gpu=1),
        r"nic 'h2n0': serves gpu 1, but host 'h2' has 1 NIC; number them 0 to 0",
    ),
    "gpu of no host": (without("nodes", 0, "host"), r"nic 'h1n0': serves gpu 0 of no host; name"),
    "gpu of a switch": (
        added("nodes", id="leaf9", kind="leaf", gpu=0),
        r"node 'leaf9': has a gpu, but is not a nic; drop it",
    ),
    "gpu no integer": (node(0, gpu="a"), r"node 'h1n0': gpu is 'a'; give an integer, 0 or more"),
    "unknown kind": (node(0, kind="router"), r"node 'h1n0': unknown kind 'router'; use one of nic"),
    "kind a list": (node(0, kind=["nic"]), r"node 'h1n0': unknown kind \['nic'\]"),
    "no kind": (without("nodes", 0, "kind"), r"node 'h1n0': has no kind"),
    "table negative": (node(4, table_size=-1), r"node 'leaf1': table_size is -1; give an integer"),
    "table a fraction": (node(4, table_size=1.5), r"table_size is 1.5; give an integer"),
    "table a boolean": (node(4, table_size=True), r"table_size is True; give an integer"),
    "table beyond reason": (node(4, table_size=2**63), r"table_size is \d+; give an integer"),
    "unknown forwarding": (
        node(4, forwarding="magic"),
        r"node 'leaf1': unknown forwarding 'magic'; use one of programmed, ecmp",
    ),
    "forwarding of a NIC": (
        node(0, forwarding="ecmp"),
        r"nic 'h1n0': has a forwarding, which is of switches; drop it",
    ),
    "address a word": (
        node(0, address="ten.one"),
        r"node 'h1n0': address is 'ten.one'; give an IP address such as 10.0.0.1",
    ),
    "address half": (node(0, address="10.1"), r"node 'h1n0': address is '10.1'; give an IP"),
    "address with a prefix": (node(0, address="10.0.0.1/32"), r"address is '10.0.0.1/32'; give"),
    "address of a zone": (node(0, address="fe80::1%eth0"), r"address is 'fe80::1%eth0'; give"),
    "address of two": (
        lambda d: [record.update(address="10.0.0.1") for record in d["nodes"][:2]],
        r"address 10\.0\.0\.1 is also that of node 'h",
    ),
    "rail a word": (node(0, rail="left"), r"rail is 'left'; give an integer"),
    "state of a NIC": (
        node(0, state="down"),
        r"node 'h1n0': is a NIC and has a state, which is of switches and links; give it to its",
    ),
    "node state": (node(4, state="sleepy"), r"unknown state 'sleepy'; use one of up, down"),
    "negative gbps": (edge(0, gbps=-400), r"edge 'h1n0'-'leaf1': gbps is -400; give a finite"),
    "zero gbps": (edge(0, gbps=0), r"gbps is 0; give a finite number above 0"),
    "NaN": (edge(0, gbps=math.nan), r"edge 'h1n0'-'leaf1': gbps is nan; give a finite"),
    "infinite": (edge(0, gbps=math.inf), r"gbps is inf; give a finite"),
    "beyond floats": (edge(0, gbps=10**400), r"gbps is 1000\d*\.\.\.\d*; give a finite"),
    "gbps text": (edge(0, gbps="400"), r"gbps is '400', no number"),
    "gbps boolean": (edge(0, gbps=True), r"gbps is True, no number"),
    "no gbps": (without("edges", 0, "gbps"), r"edge 'h1n0'-'leaf1': has no gbps"),
    "unknown end": (edge(0, source="ghost"), r"edge 'ghost'-'leaf1': source 'ghost' is not a node"),
    "empty end": (edge(0, target=""), r"edge '[^']*'-'': target '' is not a node"),
    "no end": (without("edges", 0, "target"), r"edges\[0\]: has no target"),
    "self loop": (edge(0, target="h1n0"), r"edge 'h1n0'-'h1n0': joins a node to itself"),
    "same link": (
        added("edges", source="spine1", target="leaf1", key="7", gbps=1),
        r"edge 'spine1'-'leaf1' key '7': is there twice",
    ),
    "key a fraction": (edge(0, key=0.5), r"key is 0.5; give an integer or a string"),
    "link state": (edge(0, state="half"), r"edge 'h1n0'-'leaf1': unknown state 'half'"),
    "nic alone": (added("nodes", id="lone", kind="nic"), r"nic 'lone': has no link"),
    "nic to nic": (
        added("edges", source="h1n0", target="h2n0", gbps=1),
        r"link 'h1n0,h2n0,0': joins a NIC to a NIC",
    ),
    "no nic": (
        lambda d: d.update(
            nodes=[{"id": i, "kind": "leaf"} for i in "ab"],
            edges=[{"source": "a", "target": "b", "gbps": 1}],
        ),
        r"nodes: none is a nic",
    ),
    "half-connected": (
        lambda d: (
            d["nodes"].extend(
                [{"id": "island", "kind": "leaf"}, *({"id": i, "kind": "nic"} for i in ("a", "b"))]
            ),
            d["edges"].extend({"source": i, "target": "island", "gbps": 1} for i in ("a", "b")),
        ),
        r"nic 'a' and 1 more NIC: half-connected: .* other 4 NICs; .*\(island\)",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_named_with_its_record(fault: str) -> None:
    """A faulty document is refused in one line that names file, record and cure."""
    change, expected = FAULTS[fault]
    document = json.loads(GOLDEN.read_text(encoding="utf-8"))
    change(document)
    with pytest.raises(InputError) as caught:
        parse_fabric(document, "fab.json")
    line = str(caught.value)
    assert line.startswith("fab.json: ")
    assert re.search(expected, line), line
    assert "\n" not in line
    assert len(line) < 300


CONTENTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "blank": (b" \n \n", "not a JSON object"),
    "text": (b"hello", "not a JSON object"),
    "a list": (b"[]", "not a JSON object"),
    "cut short": (b'{"nodes": [\n  {"id": "a",', "line 2, column 14: malformed JSON"),
    "not UTF-8": (b'{"nodes": "\xff\xfe"}', "malformed JSON"),
    "NaN out of place": (b'{"nodes": NaN NaN}', "line 1, column 15: malformed JSON"),
    "NaN not UTF-8": (b'{"nodes": NaN, "x": "\xff"}', "malformed JSON: not UTF-8 text"),
    "gzip cut short": (gzip.compress(b'{"a": 1}' * 100)[:-10], "broken gzip"),
    "gzip of garbage": (b"\x1f\x8b" + bytes(range(200)), "broken gzip"),
    "gzip of nothing": (gzip.compress(b""), "the file is empty"),
    "deep": (b'{"a":' + b"[" * 100_000, "malformed JSON"),
}


@pytest.mark.parametrize("case", CONTENTS)
def test_content_is_refused_with_its_place(case: str, tmp_path: Path) -> None:
    """Content that is no JSON object is refused in one line, with its position if known."""
    content, expected = CONTENTS[case]
    path = tmp_path / "fab.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_fabric_file(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nan_in_a_file_is_named_with_its_record(tmp_path: Path) -> None:
    """NaN is not JSON, but many programs write it; the message names the edge."""
    document = json.loads(GOLDEN.read_text(encoding="utf-8"))
    document["edges"][3]["gbps"] = math.nan
    path = tmp_path / "fab.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(InputError, match=r"edge 'h4n0'-'leaf2': gbps is nan"):
        load_fabric_file(path)


def test_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    """A byte order mark at the start of a file does no harm."""
    path = tmp_path / "fab.json"
    path.write_bytes(b"\xef\xbb\xbf" + GOLDEN.read_bytes())
    assert load_fabric_file(path).name == "golden"


def test_large_fabrics_are_read(tmp_path: Path) -> None:
    """A fabric of 98,304 NICs with addresses takes more than 64 MiB; what lldpctl tells, more."""
    path = tmp_path / "fab.json"
    path.write_bytes(GOLDEN.read_bytes() + b" " * (65 * MEBIBYTE))
    assert load_fabric_file(path).name == "golden"


def test_large_garbage_is_refused_unread(tmp_path: Path) -> None:
    """2 GiB of garbage are refused by size alone, and the ceiling is named."""
    path = tmp_path / "fab.json"
    with path.open("wb") as file:
        file.truncate(2 << 30)
    with pytest.raises(InputError, match=r"the file is 2048 MiB, the ceiling is 1024 MiB"):
        load_fabric_file(path)


def test_archive_that_unpacks_beyond_the_ceiling_is_refused(tmp_path: Path) -> None:
    """A small archive of a huge object is refused once it passes the ceiling."""
    path = tmp_path / "fab.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as archive:
        archive.write(b'{"nodes": "')
        for _ in range(65):
            archive.write(b"x" * MEBIBYTE)
    with pytest.raises(InputError, match=r"ceiling is 64 MiB"):
        read_json(path, 64 * MEBIBYTE)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    """A missing file and a folder are told apart, each in one line."""
    with pytest.raises(InputError, match=r"absent\.json: cannot be read: No such file"):
        load_fabric_file(tmp_path / "absent.json")
    with pytest.raises(InputError, match=r"cannot be read: Is a directory"):
        load_fabric_file(tmp_path)


@pytest.mark.parametrize("document", [None, [], "x", 3])
def test_no_object_is_refused(document: object) -> None:
    """A document that is no JSON object is refused."""
    with pytest.raises(InputError, match=r"request: not an object"):
        parse_fabric(document, "request")
