"""Structures as compressed node-link JSON, named by their digest.

A structure is kept once however many plans were made on it, and states are kept
apart, as columns: a link that goes down writes some kilobytes, not the fabric.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from dataclasses import dataclass

import numpy as np
import orjson

from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import Fabric, State, Structure
from heddle_controller.model.files.fabric_file import fabric_document, parse_fabric
from heddle_controller.state.codec.container import DamagedError


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
