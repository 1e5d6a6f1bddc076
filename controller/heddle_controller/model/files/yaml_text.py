"""Read YAML from untrusted sources, within limits, and keep the line of every mapping.

The fast parser of libyaml builds its tree by recursion in C, and a file of 100,000 opening brackets
would crash the process. So the events are counted first, which needs no recursion, and the size,
the depth and the number of records are limited. An alias counts as everything that its anchor
stands for: nine lines of aliases to aliases can mean a billion records for code that merges, walks
or prints them.

Numbers are those of JSON. Other forms that YAML 1.1 allows (``1_000``, ``012`` for ten, ``1:30``
for ninety) are read as text, which fields for numbers refuse.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from heddle.text import integer, number
from heddle_controller.model.errors import InputError, refuse
from heddle_controller.model.files.content import MEBIBYTE, open_content

_CEILING = 16 * MEBIBYTE
MAX_DEPTH = 32
MAX_EVENTS = 2_000_000
"""Most records, keys and values, with aliases expanded. A containerlab topology of 24,576 NICs has
about 1,080,000."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Record(dict[Any, Any]):
    """A mapping in the file, with the line it starts on (counted from 1)."""

    line = 0


class _RecordLoader(_Loader):  # type: ignore[misc]  # chosen at run time: libyaml may be absent
    """Loads safe types only. Mappings become ``Record`` values."""


def _record(loader: Any, node: yaml.MappingNode) -> Iterator[Record]:  # noqa: ANN401 - see _Loader
    record = Record()
    record.line = node.start_mark.line + 1
    yield record  # before its content, so that an alias inside can refer to it
    record.update(loader.construct_mapping(node))


def _plain(loader: Any, node: yaml.ScalarNode) -> float:  # noqa: ANN401 - see _Loader
    read = integer if node.tag == _INT else number
    try:
        return read(loader.construct_scalar(node))
    except ValueError as error:
        raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from None


_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_RecordLoader.add_constructor("tag:yaml.org,2002:map", _record)
_RecordLoader.add_constructor(_INT, _plain)
_RecordLoader.add_constructor(_FLOAT, _plain)
_RecordLoader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if tag not in (_INT, _FLOAT)]
    for first, forms in _Loader.yaml_implicit_resolvers.items()
}
_RecordLoader.add_implicit_resolver(
    _INT, re.compile(r"[-+]?(?:0|[1-9][0-9]*)$", re.ASCII), list("-+0123456789")
)
_RecordLoader.add_implicit_resolver(
    _FLOAT,
    re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$", re.ASCII),
    list("-+0123456789."),
)


def load_yaml(path: Path) -> Any:  # noqa: ANN401 - whatever the file holds
    """Return the document in a YAML file, plain or gzip. Mappings are ``Record`` values.

    None if the file has no document, for example only comments.

    Raises:
        InputError: the file cannot be read, is empty, too large, too deep or not YAML, or has a
            key twice in one mapping. It names the line if there is one.
    """
    with open_content(path, _CEILING) as file:
        content = file.read(_CEILING + 1)
    if len(content) > _CEILING:
        reason = f"the file is larger than {_CEILING // MEBIBYTE} MiB; is it the right file?"
        raise refuse(str(path), "", reason)
    try:
        _count(content, path)
        return _load(content)
    except InputError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise refuse(str(path), line, f"malformed YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = f"not YAML text: {' '.join(str(error).split())[:200]}"
        raise refuse(str(path), "", reason) from error


def _load(content: bytes) -> Any:  # noqa: ANN401 - whatever the file holds
    loader = _RecordLoader(content)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _no_key_twice(root)
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _no_key_twice(root: yaml.Node) -> None:
    """Raise an error if a mapping has a key twice.

    This is checked before construction, because merging (``<<``) changes the tree.
    """
    waiting: list[yaml.Node] = [root]
    met: set[int] = set()
    while waiting:
        node = waiting.pop()
        if id(node) in met or isinstance(node, yaml.ScalarNode):
            continue
        met.add(id(node))
        if isinstance(node, yaml.MappingNode):
            _refuse_twice([key for key, _ in node.value])
            waiting += [value for _, value in node.value]
        else:
            waiting += node.value


def _refuse_twice(keys: list[yaml.Node]) -> None:
    seen: set[str] = set()
    for key in keys:
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                reason = f"the key {key.value!r} stands twice; keep one of them"
                raise yaml.constructor.ConstructorError(None, None, reason, key.start_mark)
            seen.add(key.value)


@dataclass(slots=True)
class _Size:
    """Size of a node with its aliases expanded."""

    anchor: str | None = None
    events: int = 1
    height: int = 0
    """Levels of nested collections, including the node itself; 0 for a scalar."""


def _count(content: bytes, path: Path) -> None:
    documents = 0
    above: list[_Size] = []
    """The collections that enclose the current event."""
    anchored: dict[str, _Size] = {}
    for count, event in enumerate(yaml.parse(content, Loader=_RecordLoader)):
        whole = _ended(event, anchored, above, path)
        documents += isinstance(event, yaml.DocumentStartEvent)
        if whole is not None:
            if whole.anchor is not None:
                anchored[whole.anchor] = whole
            if above:
                above[-1].events += whole.events
                above[-1].height = max(above[-1].height, whole.height + 1)
        size = max(count, *(one.events for one in (whole, *above[-1:]) if one), 0)
        depth = len(above) + (whole.height if whole else 0)
        if depth > MAX_DEPTH or size > MAX_EVENTS or documents > 1:
            raise _too_much(path, event, documents, depth)


def _ended(
    event: yaml.Event, anchored: dict[str, _Size], above: list[_Size], path: Path
) -> _Size | None:
    """Return the size of the node that ends with this event, or None if no node ends."""
    if isinstance(event, yaml.CollectionStartEvent):
        above.append(_Size(event.anchor, height=1))
    elif isinstance(event, yaml.CollectionEndEvent):
        return above.pop()
    elif isinstance(event, yaml.AliasEvent):
        return _meant(event, anchored, above, path)
    elif isinstance(event, yaml.ScalarEvent):
        return _Size(event.anchor)
    return None


def _meant(
    event: yaml.AliasEvent, anchored: dict[str, _Size], above: list[_Size], path: Path
) -> _Size:
    """Return the size of the node that an alias refers to."""
    if any(one.anchor == event.anchor for one in above):
        raise refuse(str(path), _line(event), f"*{event.anchor} stands within itself; take it out")
    known = anchored.get(
        event.anchor or "", _Size()
    )  # one without an anchor is the parser's to refuse
    return _Size(None, known.events, known.height)


def _too_much(path: Path, event: yaml.Event, documents: int, depth: int) -> InputError:
    if documents > 1:
        reason = "a second document starts here; give one document, a list of all records"
    elif depth > MAX_DEPTH:
        reason = f"nested more than {MAX_DEPTH} deep; is it the right file?"
    else:
        reason = f"more than {MAX_EVENTS:,} records and values, aliases written out; "
        reason += "is it the right file?"
    return refuse(str(path), _line(event), reason)


def _line(event: yaml.Event) -> str:
    return f"line {event.start_mark.line + 1}" if event.start_mark else ""
