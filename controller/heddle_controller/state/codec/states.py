"""How links and nodes stand, apart from the structure they belong to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Floats, Ints
from heddle_controller.model.fabric import Structure
from heddle_controller.state.codec.container import DamagedError, pack, unpack


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
