"""Structures as compressed node-link JSON, named by their digest.

A structure is kept once however many plans were made on it, and states are kept
apart, as columns: a link that goes down writes some kilobytes, not the fabric.

How links and nodes stand, apart from the structure they belong to.

Answers that are remembered with the id of the request they were given to.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import dataclass

import numpy as np
import orjson

from heddle_controller.model.arrays import Floats, Ints
from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import Fabric, State, Structure
from heddle_controller.model.files.fabric_file import fabric_document, parse_fabric
from heddle_controller.state.codec.container import DamagedError, pack, parser, unpack
from heddle_controller.state.records import FabricSummary, LinkRecord


@dataclass(frozen=True, slots=True, eq=False)
class PackedStructure:
    """A structure, its name, and its bytes; ``structure`` is what reading them back gives."""

    digest: str
    body: bytes
    structure: Structure


def pack_structure(structure: Structure, origin: str) -> PackedStructure:
    """Compress a structure, and read it back: nothing is kept that cannot be.

    Raises:
        InputError: with ``origin`` as its source, where it is no sound fabric.
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
    """The structure kept under a digest.

    Raises:
        DamagedError: the bytes are not those that were kept.
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
    """How links and nodes stand: the columns that change without the structure."""

    link_admin: Ints
    node_admin: Ints
    time: Floats

    def packed(self) -> bytes:
        """As bytes."""
        return pack(
            {},
            {
                "link_admin": self.link_admin,
                "node_admin": self.node_admin,
                "time": self.time,
            },
        )


def unpack_states(packed: bytes) -> States:
    """Raises ``DamagedError`` for anything that ``States.packed`` did not make."""
    try:
        return States(**unpack(packed)[1])
    except TypeError as error:
        raise DamagedError(f"states: {error}") from error


def state_times(
    old: tuple[Structure, States] | None, structure: Structure, states: States, now: float
) -> Floats:
    """When each link was last wanted otherwise: carried over where it is wanted as before."""
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
