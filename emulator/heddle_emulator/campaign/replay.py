"""Write single trials as drills, so that each can be played without the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.content import write_content
from heddle_controller.model.flows import Flows
from heddle_emulator.campaign.campaign import Campaign
from heddle_emulator.campaign.results import Result, Summary
from heddle_emulator.campaign.trials import FaultEvent, FaultKind

_FOLDER = "replays"
STRIKES, SETTLE = "100ms", "2s"


def write_replays(out: Path, campaign: Campaign, summary: Summary) -> list[Path]:
    """Write a drill for each of the worst trials, and return their paths, worst first.

    Raises:
        InputError: a drill cannot be written.
    """
    if not summary.worst:
        return []
    folder = out / _FOLDER
    folder.mkdir(exist_ok=True)
    paths = [folder / f"trial-{result.number}.yaml" for result in summary.worst]
    for path, result in zip(paths, summary.worst, strict=True):
        write_content(path, replay(campaign, result).encode())
    return paths


def replay(campaign: Campaign, result: Result) -> str:
    """Return the text of a drill in which only this trial's events happen, to a whole fabric."""
    told = json.loads(json.dumps(campaign.told))  # plain mappings, which YAML can write
    steps = [_step(campaign.fabric, event) for event in result.trial().events]
    record = {
        "drill": f"trial-{result.number}",
        "proves": f"Trial {result.number} of campaign {campaign.name} strands nothing:"
        f" {result.words}",
        "worlds": ["fluid"],
        "fabric": told.get("fabric"),
        "demands": told.get("demands") or _demands(campaign.fabric, campaign.flows),
        "timeline": steps,
        "settle": SETTLE,
        "seed": campaign.drawing.seed,
        "expect": [{"stranded": "demands", "most": result.cut_off}],
    }
    return yaml.safe_dump(record, sort_keys=False, default_flow_style=None, width=100)


def _step(fabric: Fabric, event: FaultEvent) -> dict[str, Any]:
    step, _ = event.steps(fabric)
    target = str(step.targets[0])
    if event.kind is FaultKind.FLAP:
        return {"at": STRIKES, "flap": target, "period": "20ms", "count": 3}
    return {"at": STRIKES, step.kind.value: target}


def _demands(fabric: Fabric, flows: Flows) -> list[dict[str, Any]]:
    """Return a demand for every flow, as drills take no flow files. Jobs and phases are lost."""
    ids = fabric.structure.nodes.ids
    columns = (flows.source, flows.destination, flows.gbps, flows.qps)
    return [
        {"from": ids[source], "to": ids[destination], "gbps": gbps, "qps": qps}
        for source, destination, gbps, qps in zip(*(c.tolist() for c in columns), strict=True)
    ]
