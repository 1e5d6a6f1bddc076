"""The fabric's row, which every write touches: its version, its states, its structure."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from heddle_controller.model.fabric import Fabric, Structure
from heddle_controller.state.codec.structure import unpack_structure
from heddle_controller.state.errors import NotFound, StaleIntent
from heddle_controller.state.records import FabricRecord, Overlay
from heddle_controller.store.common.states import States, unpack_states

Structures = dict[str, Structure]


@dataclass(frozen=True, slots=True, eq=False)
class FabricRow:
    """A fabric as it stands in its table."""

    name: str
    title: str
    digest: str
    structure: Structure
    states: States
    etag: str
    update_time: float
    revision: int
    version: int
    change_time: float
    overlay: Overlay

    def record(self) -> FabricRecord:
        """As the port tells it."""
        return FabricRecord(
            name=self.name,
            title=self.title,
            etag=self.etag,
            update_time=self.update_time,
            revision=self.revision,
            fabric=Fabric(self.structure, self.states.link_admin, self.states.node_admin),
            observed=self.states.observed,
            state_time=self.states.time,
            overlay=self.overlay,
        )


def find_fabric(
    connection: sqlite3.Connection, name: str, structures: Structures
) -> FabricRow | None:
    """The row of a fabric, None if there is none."""
    row = connection.execute(
        "SELECT overlay_withdrawn, overlay_time, title, structure, states, etag, update_time, "
        "revision, version, change_time FROM fabrics WHERE name = ?",
        (name,),
    ).fetchone()
    if row is None:
        return None
    title, digest, states, etag, update_time, revision, version, change_time = row[2:]
    return FabricRow(
        name=name,
        title=title,
        digest=digest,
        structure=load_structure(connection, digest, structures),
        states=unpack_states(states),
        etag=etag,
        update_time=update_time,
        revision=revision,
        version=version,
        change_time=change_time,
        overlay=Overlay(withdrawn=bool(row[0]), time=row[1]),
    )


def fabric_row(connection: sqlite3.Connection, name: str, structures: Structures) -> FabricRow:
    """The row of a fabric. Raises ``NotFound``."""
    row = find_fabric(connection, name, structures)
    if row is None:
        raise NotFound(f"fabrics/{name}")
    return row


def load_structure(
    connection: sqlite3.Connection, digest: str, structures: Structures
) -> Structure:
    """The structure of a digest, from memory where it has been read before."""
    if digest not in structures:
        row = connection.execute(
            "SELECT body FROM structures WHERE digest = ?", (digest,)
        ).fetchone()
        structures[digest] = unpack_structure(row[0], digest)
    return structures[digest]


def drop_unused_structures(connection: sqlite3.Connection, structures: Structures) -> None:
    """Forget the structures that no fabric and no kept plan stands on."""
    connection.execute(
        "DELETE FROM structures WHERE digest NOT IN "
        "(SELECT structure FROM fabrics UNION SELECT structure FROM plans)"
    )
    kept = {row[0] for row in connection.execute("SELECT digest FROM structures")}
    for digest in set(structures) - kept:
        del structures[digest]


def bump_intent(connection: sqlite3.Connection, fabric: str, now: float) -> int:
    """Count a write of intent: the new version. Raises ``NotFound``."""
    row = connection.execute(
        "UPDATE fabrics SET version = version + 1, change_time = ? WHERE name = ? "
        "RETURNING version",
        (now, fabric),
    ).fetchone()
    if row is None:
        raise NotFound(f"fabrics/{fabric}")
    return int(row[0])


def bump_facts(connection: sqlite3.Connection, fabric: str) -> None:
    """Count a write of facts. Raises ``NotFound``."""
    if not connection.execute(
        "UPDATE fabrics SET facts = facts + 1 WHERE name = ?", (fabric,)
    ).rowcount:
        raise NotFound(f"fabrics/{fabric}")


def revision_of(connection: sqlite3.Connection, fabric: str) -> int:
    """The fabric's revision. Raises ``NotFound``."""
    row = connection.execute("SELECT revision FROM fabrics WHERE name = ?", (fabric,)).fetchone()
    if row is None:
        raise NotFound(f"fabrics/{fabric}")
    return int(row[0])


def check_revision(connection: sqlite3.Connection, fabric: str, checked: int) -> None:
    """Nothing if the fabric is still the one checked against.

    Raises:
        NotFound: there is no such fabric.
        StaleIntent: it was put again since.
    """
    if revision_of(connection, fabric) != checked:
        raise StaleIntent(fabric)


def save_states(connection: sqlite3.Connection, fabric: str, states: States, now: float) -> int:
    """Write changed states as a change of intent: the new version."""
    connection.execute("UPDATE fabrics SET states = ? WHERE name = ?", (states.packed(), fabric))
    return bump_intent(connection, fabric, now)


def kept_for(connection: sqlite3.Connection, fabric: str) -> int:
    """See ``Committed``."""
    row = connection.execute("SELECT kept_for FROM fabrics WHERE name = ?", (fabric,)).fetchone()
    return int(row[0])


def newest_generation(connection: sqlite3.Connection, fabric: str) -> int:
    """Of the newest plan; 0 for none."""
    row = connection.execute(
        "SELECT max(generation) FROM plans WHERE fabric = ?", (fabric,)
    ).fetchone()
    return int(row[0] or 0)
