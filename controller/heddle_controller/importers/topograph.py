"""The graph of NVIDIA topograph: each instance with the switches above it, nearest first.

That is what a host table tells (see ``host_table``): an instance is a host, its
``network_layers`` are the leaf, the group of spines and the group of cores above it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from heddle_controller.importers.host_table import HostRow, fabric_of_rows, refuse_twice
from heddle_controller.importers.options import ImportOptions, check_words
from heddle_controller.model.errors import MAX_PROBLEMS, InputError, Problem, refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.records import short

LAYERS = 3
"""Leaf, spine and core."""


def import_topograph(
    document: Mapping[str, object],
    name: str,
    origin: str,
    mapping: Mapping[str, str],
    options: ImportOptions,
) -> Fabric:
    """The fabric of a document of topograph's engine "graph".

    Raises:
        InputError: naming the instance: no id, no layers, more than three or not as many
            as the first has; or as ``fabric_of_rows``.
    """
    check_words(mapping, (), origin)
    instances = document.get("instances")
    if not isinstance(instances, list) or not instances:
        reason = f"is {short(instances)}; give a list with at least one instance"
        raise refuse(origin, "instances", reason)
    problems = list(_faults(instances))
    if problems:
        raise InputError(origin, *problems[:MAX_PROBLEMS])
    rows = []
    for place, instance in enumerate(instances):
        layers = [*instance["network_layers"], *[""] * LAYERS]
        leaf, spine, core = layers[:LAYERS]
        rows.append(HostRow(f"instances[{place}]", instance["id"], leaf, spine, core))
    refuse_twice(rows, origin)
    return fabric_of_rows(name, rows, origin, options)


def _faults(instances: list[object]) -> Iterator[Problem]:
    depth: int | None = None
    for place, instance in enumerate(instances):
        where = f"instances[{place}]"
        if not isinstance(instance, dict):
            yield Problem(where, f"is {short(instance)}; give an object")
            continue
        name, layers = instance.get("id"), instance.get("network_layers")
        if not isinstance(name, str) or not name:
            yield Problem(where, f"id is {short(name)}; give the instance's name")
        elif (
            not isinstance(layers, list)
            or not 1 <= len(layers) <= LAYERS
            or not all(isinstance(layer, str) and layer for layer in layers)
        ):
            reason = f"network_layers is {short(layers)}; give 1 to {LAYERS} names, the leaf first"
            yield Problem(f"{where} ({short(name)})", reason)
        elif len(layers) != (depth := depth or len(layers)):
            reason = f"has {len(layers)} network_layers, others above {depth}"
            yield Problem(f"{where} ({short(name)})", f"{reason}; give all as many")
