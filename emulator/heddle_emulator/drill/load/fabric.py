"""The fabric of a YAML file: a file's name, or one of the builders with its counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heddle_controller.model.errors import InputError, Problem
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import load_fabric_file
from heddle_controller.model.files.records import short
from heddle_controller.traffic.fields import Fields
from heddle_controller.traffic.yaml_text import Record
from heddle_emulator import topology

_BUILDERS = {
    "clos": topology.clos,
    "three_tier": topology.three_tier,
    "rail": topology.rail_optimised,
    "dual_tor": topology.dual_tor,
    "random_regular": topology.random_regular,
    "dragonfly": topology.dragonfly,
}


def read_fabric(path: Path, fields: Fields) -> Fabric | None:
    """The fabric of a record: a file beside it, or a shape and its counts; None if at fault."""
    value = fields.record.get("fabric")
    if isinstance(value, str):
        return load_fabric_file(path.parent / value)
    shapes = ", ".join(_BUILDERS)
    if not isinstance(value, Record) or len(value) != 1 or next(iter(value)) not in _BUILDERS:
        fields.fault(f"fabric is {short(value)}; give a file's name, or one of {shapes}: {{...}}")
        return None
    ((shape, options),) = value.items()
    if not isinstance(options, Record):
        fields.fault(f"fabric {shape} is {short(options)}; give its counts")
        return None
    builder: Any = _BUILDERS[shape]
    try:
        built: Fabric = builder(**options)
    except TypeError as error:
        reason = str(error).partition(") ")[2] or str(error)
        fields.problems.append(Problem(f"fabric (line {options.line})", f"{shape} {reason}"))
    except InputError as error:
        told = [
            Problem(f"fabric (line {options.line}), {p.record}", p.reason) for p in error.problems
        ]
        fields.problems.extend(told)
    else:
        return built
    return None
