"""YAML from strangers: under ceilings, with the line of every mapping.

The fast parser of libyaml builds its tree by recursion in C, and a file of
100,000 opening brackets ends the process there. So the events are counted first,
which needs no stack: depth and number of records have ceilings, as the size has.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from heddle_controller.model.errors import InputError, refuse
from heddle_controller.model.files.content import MEBIBYTE, open_content

CEILING = 16 * MEBIBYTE
MAX_DEPTH = 32
MAX_EVENTS = 1_000_000
"""Records, keys and values; 100 jobs on 4,096 hosts each have some 400,000."""

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Record(dict[Any, Any]):
    """A mapping of the file, and the line it starts on (from 1)."""

    line = 0


class _RecordLoader(_Loader):  # type: ignore[misc]  # chosen at run time: libyaml may be absent
    """Safe types only; mappings become records."""


def _record(loader: Any, node: yaml.MappingNode) -> Iterator[Record]:  # noqa: ANN401 - see _Loader
    record = Record()
    record.line = node.start_mark.line + 1
    yield record  # first, so that an alias inside can refer to it
    record.update(loader.construct_mapping(node))


_RecordLoader.add_constructor("tag:yaml.org,2002:map", _record)


def load_yaml(path: Path) -> Any:  # noqa: ANN401 - whatever the file holds
    """The document in a YAML file, plain or gzip; mappings are ``Record``s.

    Raises:
        InputError: the file cannot be read, is empty, too large, too deep or no YAML;
            with the line where one is to blame.
    """
    with open_content(path, CEILING) as file:
        content = file.read(CEILING + 1)
    if len(content) > CEILING:
        reason = f"the file is larger than {CEILING // MEBIBYTE} MiB; is it the right file?"
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
    """Looked at before anything is made of the tree, as merging (``<<``) changes it."""
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


def _count(content: bytes, path: Path) -> None:
    depth = documents = 0
    for count, event in enumerate(yaml.parse(content, Loader=_RecordLoader)):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.DocumentStartEvent):
            documents += 1
        if depth > MAX_DEPTH or count > MAX_EVENTS or documents > 1:
            raise _too_much(path, event, documents, depth)


def _too_much(path: Path, event: yaml.Event, documents: int, depth: int) -> InputError:
    if documents > 1:
        reason = "a second document starts here; give one document, a list of all records"
    elif depth > MAX_DEPTH:
        reason = f"nested more than {MAX_DEPTH} deep; is it the right file?"
    else:
        reason = f"more than {MAX_EVENTS:,} records and values; is it the right file?"
    return refuse(
        str(path), f"line {event.start_mark.line + 1}" if event.start_mark else "", reason
    )
