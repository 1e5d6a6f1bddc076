"""What is asked when a fabric is put, packed before anything is decided."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.fabric import Fabric
from heddle_controller.state.codec.container import pack, unpack
from heddle_controller.state.codec.structure import PackedStructure
from heddle_controller.state.records import FabricRecord
from heddle_controller.store.common.requests import fingerprint


@dataclass(frozen=True, slots=True, eq=False)
class FabricPut:
    """One request to put a fabric, packed before its transaction begins."""

    name: str
    title: str
    fabric: Fabric
    packed: PackedStructure
    etag: str
    checked_version: int | None

    def fingerprint(self) -> str:
        """Of all it asks for."""
        states = np.concatenate([self.fabric.link_state, self.fabric.node_state]).tobytes()
        digest = self.packed.digest
        return fingerprint("put_fabric", self.name, self.title, digest, states, self.etag)

    def encode(self, record: FabricRecord) -> bytes:
        """What of the answer the request does not tell."""
        meta = {
            "etag": record.etag,
            "update_time": record.update_time,
            "revision": record.revision,
        }
        return pack(meta, {"observed": record.observed, "state_time": record.state_time})

    def decode(self, answer: bytes) -> FabricRecord:
        """The first answer to this request."""
        meta, columns = unpack(answer)
        fabric = replace(self.fabric, structure=self.packed.structure)
        return FabricRecord(self.name, self.title, fabric=fabric, **meta, **columns)
