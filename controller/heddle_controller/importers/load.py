"""Load a fabric file of any form. The form is recognised by the file's content."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from heddle_controller.importers.containerlab import import_clab
from heddle_controller.importers.host_table import import_hosts, import_topograph
from heddle_controller.importers.ibnetdiscover import MARKS, import_subnet
from heddle_controller.importers.lldp import import_lldp, is_lldp
from heddle_controller.importers.node_link import import_node_link
from heddle_controller.importers.options import ImportOptions
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.files.content import open_content, read_json
from heddle_controller.model.files.fabric_file import MOST_BYTES_OF_FABRIC, parse_fabric

FORMATS = (
    *("auto", "heddle", "node-link", "csv"),
    *("ibnetdiscover", "lldp", "topograph", "containerlab"),
)

_TEXT: dict[str, Callable[[Path, Mapping[str, str], ImportOptions], Fabric]] = {
    "csv": import_hosts,
    "ibnetdiscover": import_subnet,
    "containerlab": import_clab,
}
_JSON: dict[
    str, Callable[[Mapping[str, Any], str, str, Mapping[str, str], ImportOptions], Fabric]
] = {"lldp": import_lldp, "topograph": import_topograph}

_PEEK = 4096
_CLAB = re.compile(r"(?:name|topology|mgmt|prefix):(?:\s.*)?")
"""A line with a top-level key of a containerlab topology, which no CSV has."""
_KINDS = {kind.name.lower() for kind in NodeKind}


def load_fabric(
    path: Path,
    *,
    format: str = "auto",  # noqa: A002 - the word users know from --format
    mapping: Mapping[str, str] | None = None,
    options: ImportOptions | None = None,
    note: Callable[[str], object] | None = None,
) -> Fabric:
    """Read a fabric file, plain or gzip, of one of ``FORMATS``.

    Args:
        path: The file.
        format: Its form. "auto" recognises the form by the content. JSON with the names of
            fabric.json is read as fabric.json if no mapping is given.
        mapping: Our word to the word in the file; see ``node_link`` and ``host_table`` for the
            words. For files that list cables, a kind to a pattern of names; see ``cabling``.
        options: Choices that the file does not determine; None for the defaults.
        note: Called with a sentence that names what is ignored in a fabric.json, if anything is.

    Raises:
        InputError: the file cannot be read, its form is not known, or it is not a valid fabric.
    """
    chosen = options or ImportOptions()
    chosen.check(str(path))
    if format not in FORMATS:
        raise refuse(str(path), f"format {format!r}", f"unknown; use one of {', '.join(FORMATS)}")
    form = _form(path) if format == "auto" else format
    if form in _TEXT:
        return _TEXT[form](path, mapping or {}, chosen)
    document = read_json(path, MOST_BYTES_OF_FABRIC)
    form = _json_form(document) if form == "auto" else form
    if form in _JSON and isinstance(document, Mapping):
        return _JSON[form](document, path.name.split(".")[0], str(path), mapping or {}, chosen)
    if form == "heddle" or (form == "auto" and not mapping and _is_ours(document)):
        return parse_fabric(document, str(path), note=note)
    return import_node_link(document, str(path), mapping or {}, chosen)


def _form(path: Path) -> str:
    """Return the form that the first bytes show. "auto" means a form in JSON."""
    with open_content(path, MOST_BYTES_OF_FABRIC) as file:
        head = file.read(_PEEK).removeprefix(b"\xef\xbb\xbf").lstrip()
    if head[:1] in (b"{", b"[", b""):
        return "auto"
    lines = head.decode("utf-8", "replace").splitlines()
    if any(line.startswith(MARKS) for line in lines[:8]):
        return "ibnetdiscover"
    return "containerlab" if any(map(_CLAB.fullmatch, lines)) else "csv"


def _json_form(document: object) -> str:
    if isinstance(document, Mapping) and "nodes" not in document:
        if is_lldp(document):
            return "lldp"
        if "instances" in document:
            return "topograph"
    return "auto"


def _is_ours(document: object) -> bool:
    """Return whether the first records have the names of fabric.json.

    The document is then read as fabric.json, so that errors use these names.
    """
    if not isinstance(document, Mapping) or document.get("directed"):
        return False
    node, edge = _first(document.get("nodes")), _first(document.get("edges"))
    return str(node.get("kind")) in _KINDS and "id" in node and "gbps" in edge


def _first(records: object) -> Mapping[str, Any]:
    if isinstance(records, list) and records and isinstance(records[0], dict):
        return records[0]
    return {}
