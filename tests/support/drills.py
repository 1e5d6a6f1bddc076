"""Drills with faults on other switches than in their files; the verdict must be the same."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from random import Random

from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_emulator.drill.load import load_scenario
from heddle_emulator.drill.scenario import Scenario

NAME = re.compile(r"[\w-]+")


def alike(fabric: Fabric) -> list[list[str]]:
    """Return groups of switches that differ only in name, because all their links are equal."""
    structure = fabric.structure
    first, arcs = structure.out
    sorts = defaultdict(list)
    for row, name in enumerate(structure.nodes.ids):
        own = arcs[first[row] : first[row + 1]].tolist()
        sort = sorted(
            (
                int(structure.head[arc]),
                str(structure.links.key[arc >> 1]),
                float(structure.capacity[arc]),
            )
            for arc in own
        )
        if structure.nodes.kind[row] != NodeKind.NIC:
            sorts[tuple(sort)].append(name)
    return [names for names in sorts.values() if len(names) > 1]


def turned(path: Path, random: Random, folder: Path) -> Scenario:
    """Return a drill whose faults happen to other, equal switches; each group is shuffled.

    The plan is unchanged, so the faults hit other parts of it, as if the plan were another one.
    """
    scenario, text = load_scenario(path), path.read_text()
    names: dict[str, str] = {}
    for sort in alike(scenario.fabric):
        names.update(zip(sort, random.sample(sort, len(sort)), strict=True))
    fabric, timeline = text.split("\ntimeline:", 1)
    faults = NAME.sub(lambda found: names.get(found[0], found[0]), timeline)
    other = folder / path.name
    other.write_text(f"{fabric}\ntimeline:{faults}")
    return load_scenario(other)
