"""Plans and their programs as columns; the structure they speak of is kept apart."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

import numpy as np

from heddle_controller.model.arrays import Ints, starts
from heddle_controller.model.fabric import Fabric, Structure
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import (
    AfterLoss,
    Certificate,
    NicPorts,
    Paths,
    Plan,
    TierCertificate,
    Turn,
)
from heddle_controller.model.program import Entries, Program
from heddle_controller.state.codec.container import DamagedError, pack
from heddle_controller.state.codec.pieces import PiecePacker, Table, table, unpack_pieces

_FLOWS = (
    "source",
    "destination",
    "gbps",
    "job",
    "phase",
    "qps",
    "traffic_class",
    "weight",
    "bytes",
)
_PORTS = ("port", "backup", "probes")
PATHS = ("flow", "first_qp", "last_qp")
ENTRIES = (
    "switch",
    "source",
    "destination",
    "source_port",
    "destination_port",
    "primary",
    "backup",
    "stage",
)


FLOWS_A_PIECE = 256
NODES_A_PIECE = 16
FLOWS_KEPT = 4
"""Sets of flows whose packed form is remembered."""


class PlanPacker:
    """Packs plans; one that is like an earlier one takes little time."""

    def __init__(self) -> None:
        self._pieces = PiecePacker()
        self._flows: deque[tuple[Flows, bytes]] = deque(maxlen=FLOWS_KEPT)
        """The newest few, and what they were packed to."""

    def pack(self, plan: Plan, program: Program) -> bytes:
        """Bytes of a plan and its program, without the structure."""
        entries = program.entries
        states = {"link_state": plan.fabric.link_state, "node_state": plan.fabric.node_state}
        states |= ports_columns(plan)
        columns = {name: getattr(entries, name) for name in ENTRIES}
        columns |= {"lengths": np.diff(entries.risk_first), "risk_links": entries.risk_links}
        return self._pieces.pack(
            [pack(plan_meta(plan, program), states), self._packed_flows(plan.flows)],
            [
                _paths_table("paths", plan.paths),
                _paths_table("backups", plan.backups),
                table("entries", columns, entries.switch, NODES_A_PIECE, "risk_links"),
            ],
        )

    def _packed_flows(self, flows: Flows) -> bytes:
        """Most plans are of the flows of the one before, so these are packed once for them all."""
        for known, packed in [*self._flows]:
            if known is flows:
                return packed
        meta = {"table": "flows", "ids": flows.ids}
        meta |= {"job_names": flows.job_names, "phase_names": flows.phase_names}
        packed = pack(meta, {name: getattr(flows, name) for name in _FLOWS})
        self._flows.append((flows, packed))
        return packed


def plan_meta(plan: Plan, program: Program) -> dict[str, Any]:
    """What there is to say of a plan and its program besides their tables."""
    certificate = plan.certificate
    return {
        "certificate": [
            certificate.max_utilization,
            certificate.lower_bound,
            certificate.proof,
            [[t.tier, t.max_utilization, t.lower_bound] for t in certificate.tiers],
            [astuple(one) for one in certificate.after_loss],
            None if certificate.turns is None else [astuple(one) for one in certificate.turns],
        ],
        "unrouted": list(plan.unrouted.items()),
        "notes": plan.notes,
        "program": [program.epoch, program.generation, program.intent_version],
    }


def ports_columns(plan: Plan) -> dict[str, Ints]:
    """The ports of NICs, if they carry flows; see ``ports_of``."""
    ports = plan.nic_ports
    return {} if ports is None else {f"ports.{one}": getattr(ports, one) for one in _PORTS}


def ports_of(columns: Mapping[str, Any]) -> NicPorts | None:
    """The ports in columns."""
    if f"ports.{_PORTS[0]}" not in columns:
        return None
    return NicPorts(*(columns[f"ports.{one}"] for one in _PORTS))


def certificate_from_meta(meta: dict[str, Any]) -> Certificate:
    """The certificate in what ``plan_meta`` gave."""
    worst, bound, proof, tiers, after_loss, turns = meta["certificate"]
    return Certificate(
        worst,
        bound,
        proof,
        tuple(TierCertificate(*tier) for tier in tiers),
        tuple(AfterLoss(*one) for one in after_loss),
        None if turns is None else tuple(Turn(*one) for one in turns),
    )


def _paths_table(name: str, paths: Paths) -> Table:
    columns = {one: getattr(paths, one) for one in PATHS}
    columns |= {"lengths": np.diff(paths.first), "arcs": paths.arcs}
    return table(name, columns, paths.flow, FLOWS_A_PIECE, "arcs")


def unpack_plan(packed: bytes, structure: Structure) -> tuple[Plan, Program]:
    """The plan and its program on the structure that they were made on.

    Raises:
        DamagedError: the bytes are not what ``PlanPacker`` made.
    """
    meta, columns = unpack_pieces(packed)
    try:
        return _plan(meta, columns, structure)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"plan: {error!r}") from error


def _plan(
    meta: dict[str, Any], columns: dict[str, Any], structure: Structure
) -> tuple[Plan, Program]:
    def part(prefix: str, names: tuple[str, ...]) -> dict[str, Any]:
        return {name: columns[f"{prefix}.{name}"] for name in names}

    def first(table: str) -> Ints:
        return starts(columns[f"{table}.lengths"])

    flows = Flows(
        ids=tuple(meta["ids"]),
        job_names=tuple(meta["job_names"]),
        phase_names=tuple(meta["phase_names"]),
        **part("flows", _FLOWS),
    )
    plan = Plan(
        fabric=Fabric(structure, columns["link_state"], columns["node_state"]),
        flows=flows,
        paths=Paths(**part("paths", (*PATHS, "arcs")), first=first("paths")),
        backups=Paths(**part("backups", (*PATHS, "arcs")), first=first("backups")),
        certificate=certificate_from_meta(meta),
        unrouted={int(row): str(reason) for row, reason in meta["unrouted"]},
        notes=tuple(meta["notes"]),
        nic_ports=ports_of(columns),
    )
    epoch, generation, intent_version = meta["program"]
    rows = part("entries", (*ENTRIES, "risk_links"))
    entries = Entries(**rows, risk_first=first("entries"))
    return plan, Program(epoch, generation, intent_version, entries)
