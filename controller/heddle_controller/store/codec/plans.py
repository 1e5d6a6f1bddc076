"""Plans and their programs as columns; the structure they speak of is kept apart."""

from __future__ import annotations

from typing import Any

from heddle_controller.model.fabric import Fabric, Structure
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Certificate, Paths, Plan, TierCertificate
from heddle_controller.model.program import Entries, Program
from heddle_controller.store.codec.container import DamagedError, pack, unpack

_FLOWS = ("source", "destination", "gbps", "job", "phase", "qps", "traffic_class", "weight")
_PATHS = ("flow", "first_qp", "last_qp", "first", "arcs")
_ENTRIES = (
    "switch",
    "source",
    "destination",
    "source_port",
    "destination_port",
    "primary",
    "backup",
    "stage",
    "risk_first",
    "risk_links",
)


def pack_plan(plan: Plan, program: Program) -> bytes:
    """Bytes of a plan and its program, without the structure."""
    flows, certificate = plan.flows, plan.certificate
    meta = {
        "ids": flows.ids,
        "job_names": flows.job_names,
        "phase_names": flows.phase_names,
        "certificate": [
            certificate.max_utilization,
            certificate.lower_bound,
            certificate.proof,
            [[t.tier, t.max_utilization, t.lower_bound] for t in certificate.tiers],
        ],
        "unrouted": list(plan.unrouted.items()),
        "notes": plan.notes,
        "program": [program.epoch, program.generation, program.intent_version],
    }
    columns = {"link_state": plan.fabric.link_state, "node_state": plan.fabric.node_state}
    for prefix, part, names in (
        ("flows", flows, _FLOWS),
        ("paths", plan.paths, _PATHS),
        ("backups", plan.backups, _PATHS),
        ("entries", program.entries, _ENTRIES),
    ):
        columns |= {f"{prefix}.{name}": getattr(part, name) for name in names}
    return pack(meta, columns)


def unpack_plan(packed: bytes, structure: Structure) -> tuple[Plan, Program]:
    """The plan and its program on the structure that they were made on.

    Raises:
        DamagedError: the bytes are not what ``pack_plan`` made.
    """
    meta, columns = unpack(packed)
    try:
        return _plan(meta, columns, structure)
    except (KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"plan: {error!r}") from error


def _plan(
    meta: dict[str, Any], columns: dict[str, Any], structure: Structure
) -> tuple[Plan, Program]:
    def part(prefix: str, names: tuple[str, ...]) -> dict[str, Any]:
        return {name: columns[f"{prefix}.{name}"] for name in names}

    flows = Flows(
        ids=tuple(meta["ids"]),
        job_names=tuple(meta["job_names"]),
        phase_names=tuple(meta["phase_names"]),
        **part("flows", _FLOWS),
    )
    worst, bound, proof, tiers = meta["certificate"]
    plan = Plan(
        fabric=Fabric(structure, columns["link_state"], columns["node_state"]),
        flows=flows,
        paths=Paths(**part("paths", _PATHS)),
        backups=Paths(**part("backups", _PATHS)),
        certificate=Certificate(worst, bound, proof, tuple(TierCertificate(*t) for t in tiers)),
        unrouted={int(row): str(reason) for row, reason in meta["unrouted"]},
        notes=tuple(meta["notes"]),
    )
    epoch, generation, intent_version = meta["program"]
    entries = Entries(**part("entries", _ENTRIES))
    return plan, Program(epoch, generation, intent_version, entries)
