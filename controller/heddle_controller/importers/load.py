"""Any fabric file: which form it has shows in its first bytes, then in its words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heddle_controller.importers.host_table import import_hosts
from heddle_controller.importers.node_link import import_node_link
from heddle_controller.importers.options import ImportOptions
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.files.content import open_content, read_json
from heddle_controller.model.files.fabric_file import CEILING, parse_fabric

FORMATS = ("auto", "heddle", "node-link", "csv")

_PEEK = 4096
_KINDS = {kind.name.lower() for kind in NodeKind}


def load_fabric(
    path: Path,
    *,
    format: str = "auto",  # noqa: A002 - the word users know from --format
    mapping: Mapping[str, str] | None = None,
    options: ImportOptions | None = None,
) -> Fabric:
    """Read a fabric, plain or gzip, of one of ``FORMATS``.

    ``mapping`` is our word to theirs (see ``node_link`` and ``host_table`` for the
    words). "auto" takes JSON or CSV by its first byte, and JSON that has our words,
    with no mapping given, as ours.

    Raises:
        InputError: the file cannot be read, is of no known form, or is no sound fabric.
    """
    chosen = options or ImportOptions()
    chosen.check(str(path))
    if format not in FORMATS:
        raise refuse(str(path), f"format {format!r}", f"unknown; use one of {', '.join(FORMATS)}")
    if format == "csv" or (format == "auto" and not _is_json(path)):
        return import_hosts(path, mapping or {}, chosen)
    document = read_json(path, CEILING)
    if format == "heddle" or (format == "auto" and not mapping and _is_ours(document)):
        return parse_fabric(document, str(path))
    return import_node_link(document, str(path), mapping or {}, chosen)


def _is_json(path: Path) -> bool:
    with open_content(path, CEILING) as file:
        return file.read(_PEEK).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"")


def _is_ours(document: object) -> bool:
    """Whether the words of the first records are ours, so that its faults are told in them."""
    if not isinstance(document, Mapping) or document.get("directed"):
        return False
    node, edge = _first(document.get("nodes")), _first(document.get("edges"))
    return str(node.get("kind")) in _KINDS and "id" in node and "gbps" in edge


def _first(records: object) -> Mapping[str, Any]:
    if isinstance(records, list) and records and isinstance(records[0], dict):
        return records[0]
    return {}
