"""Codec of what users ask for: fabrics, jobs and demand sets.

A structure is compressed node-link JSON. It is named by its digest and stored once, however many
plans were made on it. States are columns, stored apart from it, so a link that goes down writes
some kilobytes and not the whole fabric. Jobs are JSON. Demand sets are columns, with each repeated
name stored once. The module also parses answers that are remembered with the id of a request.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from heddle_controller.model.arrays import Floats, Ints
from heddle_controller.model.demand import Demands
from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import Fabric, State, Structure
from heddle_controller.model.files.fabric_file import fabric_document, parse_fabric
from heddle_controller.model.job import Job
from heddle_controller.state.codec.container import DamagedError, pack, parser, unpack
from heddle_controller.state.records import FabricSummary, JobFacts, JobRecord, LinkRecord


@dataclass(frozen=True, slots=True, eq=False)
class PackedStructure:
    """A packed structure: its digest, its bytes, and the structure that they read back as."""

    digest: str
    body: bytes
    structure: Structure


def pack_structure(structure: Structure, origin: str) -> PackedStructure:
    """Compress a structure, and read it back to be sure that it can be read later.

    Raises:
        InputError: with ``origin`` as its source, if it is not a valid fabric.
    """
    up = Fabric(
        structure,
        np.full(len(structure.links.key), State.UP, dtype=np.int64),
        np.full(len(structure.nodes.ids), State.UP, dtype=np.int64),
    )
    content = orjson.dumps(fabric_document(up))
    read_back = parse_fabric(orjson.loads(content), origin, kept=True).structure
    digest = hashlib.sha256(content).hexdigest()
    return PackedStructure(digest, gzip.compress(content, compresslevel=1, mtime=0), read_back)


def unpack_structure(packed: bytes, digest: str) -> Structure:
    """Return the structure in packed bytes.

    Raises:
        DamagedError: the bytes are damaged, or do not match the digest.
    """
    try:
        content = gzip.decompress(packed)
        if hashlib.sha256(content).hexdigest() != digest:
            raise DamagedError(f"structure {digest} has another content than its name says")
        return parse_fabric(orjson.loads(content), f"structure {digest}", kept=True).structure
    except (OSError, EOFError, zlib.error, orjson.JSONDecodeError, InputError) as error:
        raise DamagedError(str(error)) from error


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """Administrative states of links and nodes, and when each link's last changed."""

    link_admin: Ints
    node_admin: Ints
    time: Floats

    def packed(self) -> bytes:
        """Return the states as bytes."""
        return pack(
            {},
            {
                "link_admin": self.link_admin,
                "node_admin": self.node_admin,
                "time": self.time,
            },
        )


def unpack_states(packed: bytes) -> States:
    """Return the states that ``States.packed`` made into bytes. Raises ``DamagedError``."""
    try:
        return States(**unpack(packed)[1])
    except TypeError as error:
        raise DamagedError(f"states: {error}") from error


def state_times(
    old: tuple[Structure, States] | None, structure: Structure, states: States, now: float
) -> Floats:
    """Return when the administrative state of each link last changed, shape (links,).

    It is carried over for links whose state is as before, ``now`` for those whose state differs,
    and 0 for new links. Links are matched by their ends and key.

    Args:
        old: The structure and states before; None for a new fabric.
        structure: The new structure.
        states: The new states.
        now: Unix seconds.
    """
    times = np.zeros(len(structure.links.key))
    if old is None:
        return times
    before_structure, before_states = old
    before = {name: row for row, name in enumerate(_link_names(before_structure))}
    was = np.array([before.get(name, -1) for name in _link_names(structure)], dtype=np.int64)
    kept = was >= 0
    same = before_states.link_admin[was] == states.link_admin
    times[kept] = np.where(same, before_states.time[was], now)[kept]
    return times


def _link_names(structure: Structure) -> list[tuple[str, str, str]]:
    ids, links = structure.nodes.ids, structure.links
    ends = zip(links.a.tolist(), links.b.tolist(), links.key, strict=True)
    return [(*sorted((ids[a], ids[b])), str(key)) for a, b, key in ends]


parse_link = parser(LinkRecord, "record of a link")
parse_summary = parser(FabricSummary, "summary of a fabric")


def job_json(job: Job) -> bytes:
    """Return a job as a JSON object with sorted keys."""
    return orjson.dumps(job, option=orjson.OPT_SORT_KEYS)


parse_record = parser(JobRecord, "record of a job")
parse_facts = parser(JobFacts, "facts of a job")


_NAMED = ("source", "destination", "job", "phase")
_NUMBERS = ("gbps", "qps", "traffic_class")


def pack_demands(demands: Demands) -> bytes:
    """Return a demand set as bytes."""
    meta: dict[str, Any] = {"ids": demands.ids}
    columns = {name: getattr(demands, name) for name in _NUMBERS}
    for name in _NAMED:
        column = getattr(demands, name)
        rows = {value: row for row, value in enumerate(dict.fromkeys(column))}
        meta[name] = list(rows)
        columns[name] = np.array([rows[value] for value in column], dtype=np.int64)
    return pack(meta, columns)


def unpack_demands(packed: bytes) -> Demands:
    """Return the demand set that ``pack_demands`` made into bytes. Raises ``DamagedError``."""
    meta, columns = unpack(packed)
    try:
        named: dict[str, Any] = {
            name: tuple(map(meta[name].__getitem__, columns[name].tolist())) for name in _NAMED
        }
        return Demands(
            ids=tuple(meta["ids"]), **named, **{name: columns[name] for name in _NUMBERS}
        )
    except (KeyError, IndexError, TypeError) as error:
        raise DamagedError(f"demands: {error!r}") from error
