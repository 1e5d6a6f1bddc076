"""A campaign: its fabric, its flows and how failures are drawn; and reading one from a file.

::

    campaign: one-zone
    fabric: {clos: {leaves: 192, spines: 16, nics_per_leaf: 16}}
    demands:
      - {pattern: permutation, qps: 4, seed: 1}
    draw: published        # or each, random
    failures: 1000         # by default, 1000; if draw is each, one for each link
    seed: 7
    at_once: 1             # links, where draw is random
    mend: 24h              # where draw is published
    notices: told          # or datagrams

Fabric and demands are written as in a drill. All faults of a file are reported at once, each with
its line and a cure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from heddle_controller.model.errors import MAX_PROBLEMS, InputError, Problem, refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.records import short
from heddle_controller.model.files.yaml_text import Record, load_yaml
from heddle_controller.model.flows import Flows
from heddle_controller.traffic.fields import Fields
from heddle_emulator.campaign.trials import (
    MEND_HOURS,
    Draw,
    Drawing,
    Trial,
    between_switches,
    trials,
)
from heddle_emulator.drill.load.traffic import read_demands, read_fabric

USUAL_TRIALS = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Campaign:
    """Everything that a worker needs to know. It is sent whole to other processes."""

    name: str
    fabric: Fabric
    flows: Flows
    drawing: Drawing = Drawing()  # noqa: RUF009 - frozen
    failures: int | None = None
    """Number of trials. None: one for each link if each is drawn, else ``USUAL_TRIALS``."""
    datagrams: bool = False
    """Whether agents send each other peer notices as datagrams, or are told of changes at once."""
    told: Mapping[str, Any] = field(default_factory=dict)
    """Fabric and demands as drills write them, for replays. Without demands, ``flows`` is used."""

    @property
    def trial_count(self) -> int:
        """Number of trials."""
        if self.failures is not None:
            return self.failures
        each = self.drawing.draw is Draw.EACH
        return len(between_switches(self.fabric)) if each else USUAL_TRIALS

    def trials(self) -> list[Trial]:
        """Return all trials, in order of their numbers."""
        return trials(self.fabric, self.drawing, self.trial_count)

    def fingerprint(self) -> str:
        """Return a hash that is equal for campaigns whose trials of equal number are the same."""
        structure = self.fabric.structure
        found = hashlib.sha256(repr((self.drawing, self.datagrams)).encode())
        found.update(np.ascontiguousarray(self.fabric.effective).tobytes())
        for table in (structure.nodes, structure.links, self.flows):
            for column in (getattr(table, one.name) for one in fields(table)):
                array = isinstance(column, np.ndarray)
                found.update(column.tobytes() if array else repr(column).encode())
        return found.hexdigest()[:16]


_KEYS = ("campaign", "fabric", "demands", "draw", "failures", "seed", "at_once", "mend", "notices")
_HOURS = re.compile(r"([0-9]+(?:\.[0-9]*)?)\s*(h|d)")
_UNITS = {"h": 1.0, "d": 24.0}
DRAWS = {draw.value: draw for draw in Draw}
_NOTICES = {"told": False, "datagrams": True}


def load_campaign(path: Path) -> Campaign:
    """Read the campaign in a file.

    Raises:
        InputError: the file has faults. Each problem has its line and a cure.
    """
    document = load_yaml(path)
    if not isinstance(document, Record):
        raise refuse(str(path), "", f"is {short(document)}; give a mapping with 'campaign: NAME'")
    problems: list[Problem] = []
    fields = Fields(document, f"line {document.line}", problems)
    fields.only(*_KEYS)
    fabric = read_fabric(path, fields)
    if fabric is None:
        raise InputError(str(path), *problems[:MAX_PROBLEMS])
    campaign = Campaign(
        name=fields.text("campaign", "name it"),
        fabric=fabric,
        flows=read_demands(fields, fabric),
        drawing=_drawing(fields),
        failures=fields.integer("failures") if "failures" in document else None,
        datagrams=fields.choice("notices", _NOTICES, default=False),
        told=_told(path, document),
    )
    if not len(campaign.flows) and not problems:
        fields.fault("demands nothing; give demands, such as {pattern: permutation, qps: 4}")
    if problems:
        raise InputError(str(path), *problems[:MAX_PROBLEMS])
    return campaign


def _drawing(fields: Fields) -> Drawing:
    return Drawing(
        draw=fields.choice("draw", DRAWS, Draw.RANDOM),
        at_once=fields.integer("at_once", 1),
        mend_hours=_hours(fields),
        seed=fields.integer("seed", 0, least=0),
    )


def _hours(fields: Fields) -> float:
    value = fields.record.get("mend", f"{MEND_HOURS:g}h")
    found = _HOURS.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        fields.fault(f"mend is {short(value)}; give a time such as 24h or 3d")
        return MEND_HOURS
    return float(found[1]) * _UNITS[found[2]]


def _told(path: Path, document: Record) -> dict[str, Any]:
    """Return fabric and demands for replays. The path of a fabric's file is made absolute."""
    fabric = document["fabric"]
    where = str((path.parent / fabric).resolve()) if isinstance(fabric, str) else fabric
    return {"fabric": where, "demands": document.get("demands")}


def changed(campaign: Campaign, **given: Any) -> Campaign:  # noqa: ANN401 - see Campaign, Drawing
    """Return a campaign with some values replaced. A value of None leaves the old one."""
    told = {name: value for name, value in given.items() if value is not None}
    drawing = {name: told.pop(name) for name in ("draw", "at_once", "seed") if name in told}
    return replace(campaign, drawing=replace(campaign.drawing, **drawing), **told)
