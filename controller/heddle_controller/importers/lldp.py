"""What machines' LLDP daemons know of their neighbours, as ``lldpctl -f json`` prints it.

The file is one object: the name of each machine that was asked, and what lldpctl printed
there. A cable is known from either end; where both tell of it, it is one link. That the
two tell of the same cable shows in the ports: a neighbour names its port by its id, or
by its description where the id is an address, as lldpd has it unless told otherwise.

A machine that its neighbours know to bridge or route is a switch, every other one a host.
One that no neighbour tells of is a switch if it has a host beside it. ``--map`` says what is
otherwise. Speeds are those of the port's medium where it is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from heddle_controller.importers.cabling import ANY_SWITCH, Cable, Machine, Port, fabric_of
from heddle_controller.importers.options import HOST, ImportOptions
from heddle_controller.model.errors import MAX_PROBLEMS, InputError, Problem
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.records import short

SWITCHING = {"bridge", "router"}

_MEDIUM = re.compile(r"(?P<number>[0-9]{1,5}(?:\.[0-9])?)(?P<giga>G(?:ig)?)?[bB](?:ase|ASE)")


@dataclass(frozen=True, slots=True)
class _View:
    """One neighbour that one port sees."""

    machine: str
    port: str
    far: str
    far_port: str
    switch: bool
    gbps: float | None


def is_lldp(document: object) -> bool:
    """Whether a document is one of lldpctl's, by machine."""
    return isinstance(document, dict) and any(
        isinstance(one, dict) and "lldp" in one for one in document.values()
    )


def import_lldp(
    document: Mapping[str, Any],
    name: str,
    origin: str,
    mapping: Mapping[str, str],
    options: ImportOptions,
) -> Fabric:
    """The fabric that the neighbours make.

    Raises:
        InputError: naming machine and port: a record that is not lldpctl's, a port with
            two neighbours, ends that contradict each other; or no sound fabric.
    """
    problems: list[Problem] = []
    views = [view for machine, told in document.items() for view in _views(machine, told, problems)]
    by_port: dict[tuple[str, str], _View] = {}
    for view in views:
        other = by_port.setdefault((view.machine, view.port), view)
        if other is not view:
            reason = f"sees {short(other.far)} and {short(view.far)}; a cable has one other end"
            problems.append(Problem(_where(view), f"{reason}; leave one out"))
    cables = [cable for view in views for cable in _cable(view, by_port, document, problems)]
    if problems:
        raise InputError(origin, *problems[:MAX_PROBLEMS])
    told = {view.far for view in views}
    switches = {view.far for view in views if view.switch}
    switches |= {v.machine for v in views if v.machine not in told and v.far not in switches}
    machines = dict.fromkeys([*document, *sorted(told)], Machine(HOST))
    machines |= dict.fromkeys(sorted(switches), Machine(ANY_SWITCH))
    return fabric_of(name, machines, cables, mapping=mapping, options=options, origin=origin)


def _where(view: _View) -> str:
    return f"{view.machine}, port {view.port}"


def _cable(
    view: _View,
    by_port: Mapping[tuple[str, str], _View],
    document: Mapping[str, Any],
    problems: list[Problem],
) -> Iterator[Cable]:
    """The cable that a view shows, unless the other end shows it first."""
    back = by_port.get((view.far, view.far_port))
    if back is not None and (back.far, back.far_port) != (view.machine, view.port):
        reason = f"sees {view.far}:{view.far_port}, which sees {back.far}:{back.far_port}"
        cure = "ask both again; let each name its ports: configure lldp portidsubtype ifname"
        problems.append(Problem(_where(view), f"{reason}; {cure}"))
    elif (
        back is None
        and any(other.far == view.machine for (far, _), other in by_port.items() if far == view.far)
        and view.far in document
    ):
        reason = f"sees {view.far}:{view.far_port}, but {view.far} has told of no such port"
        cure = f"on {view.far}: configure lldp portidsubtype ifname, or ask it for that port too"
        problems.append(Problem(_where(view), f"{reason}; {cure}"))
    elif back is None or (view.machine, view.port) < (back.machine, back.port):
        told = view.gbps or (back.gbps if back else None)
        ends = Port(view.machine, view.port), Port(view.far, view.far_port)
        yield Cable(*ends, _where(view), {"gbps": told} if told else {})


def _views(machine: str, told: object, problems: list[Problem]) -> Iterator[_View]:
    lldp = told.get("lldp") if isinstance(told, dict) else None
    if not isinstance(lldp, dict):
        reason = f"is {short(told)}; give what lldpctl -f json prints there"
        problems.append(Problem(machine, reason))
        return
    interfaces = lldp.get("interface", [])
    # lldpctl prints no list where there is just one.
    for one in interfaces if isinstance(interfaces, list) else [interfaces]:
        for port, seen in one.items() if isinstance(one, dict) else [("", one)]:
            try:
                yield _view(machine, port, seen)
            except (AttributeError, KeyError, TypeError, ValueError, StopIteration):
                reason = f"is {short(seen)}; give what lldpctl -f json prints there, not json0"
                problems.append(Problem(f"{machine}, port {port}", reason))


def _view(machine: str, port: str, seen: Mapping[str, Any]) -> _View:
    ((far, chassis),) = seen["chassis"].items()
    if "type" in chassis and "value" in chassis:  # a neighbour without a name has its id here
        far, chassis = chassis["value"], seen["chassis"]
    other = seen["port"]
    by_address = other["id"]["type"] in ("mac", "ip")
    far_port = other.get("descr") if by_address else None
    able = chassis.get("capability", [])
    words = {
        one["type"].lower()
        for one in (able if isinstance(able, list) else [able])
        if one["enabled"] is True
    }
    return _View(
        machine,
        port,
        _text(far),
        _text(far_port or other["id"]["value"]),
        switch=bool(words & SWITCHING),
        gbps=_gbps(other.get("auto-negotiation", {}).get("current", "")),
    )


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(short(value))
    return value


def _gbps(medium: str) -> float | None:
    """The speed of a medium such as "100GbaseCR4 - ..."; None for what is none."""
    match = _MEDIUM.match(medium)
    if match is None:
        return None
    return float(match["number"]) / (1 if match["giga"] else 1000) or None
