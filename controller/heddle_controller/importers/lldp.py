"""Import neighbours found by LLDP daemons, as ``lldpctl -f json`` prints them.

The file is one object: the name of each machine that was asked, and what lldpctl printed there. A
cable may be reported by one end or by both; either way it is one link. The reports of both ends are
matched by their ports. A neighbour's port is named by its id, or by its description if the id is an
address, which is the default of lldpd. If the id is an alias ("local"), as SONiC announces, the
port is the one of this description, or else the only one at which the neighbour may see this
machine. A machine may be asked by its short name and announce its full one, or the other way round:
the name by which it was asked is used.

A machine is a switch if its neighbours see that it bridges or routes, and otherwise a host. A
machine that no neighbour sees is a switch if it has a neighbour that is a host. ``--map`` overrides
this: hosts that run containers bridge, too. A link has the speed of the port's medium, if that is
reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from heddle_controller.importers.cabling import ANY_SWITCH, Cable, Machine, Port, fabric_of
from heddle_controller.importers.options import HOST, ImportOptions
from heddle_controller.model.errors import MAX_PROBLEMS, InputError, Problem, refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.records import short

SWITCHING = {"bridge", "router"}

_MEDIUM = re.compile(r"(?P<number>[0-9]{1,5}(?:\.[0-9])?)(?P<giga>G(?:ig)?)?[bB](?:ase|ASE)")


@dataclass(frozen=True, slots=True)
class _View:
    """A neighbour that a port of a machine sees."""

    machine: str
    port: str
    far: str
    far_port: str
    descr: str | None
    """Description of the other end's port if its id is an alias; None if that is its name."""
    switch: bool
    gbps: float | None


def is_lldp(document: object) -> bool:
    """Return whether a document has the output of lldpctl for each machine."""
    return isinstance(document, dict) and (
        _is_of_one(document)
        or any(isinstance(one, dict) and "lldp" in one for one in document.values())
    )


def _is_of_one(document: Mapping[str, Any]) -> bool:
    """Return whether a document is the output of lldpctl on one machine."""
    told = document.get("lldp")
    return isinstance(told, dict) and "interface" in told


def import_lldp(
    document: Mapping[str, Any],
    name: str,
    origin: str,
    mapping: Mapping[str, str],
    options: ImportOptions,
) -> Fabric:
    """Return the fabric of all machines and their neighbours.

    Raises:
        InputError: a record is not from lldpctl, a port has two neighbours, two ends contradict
            each other (all with machine and port), or the result is not a valid fabric.
    """
    if _is_of_one(document):
        cure = 'put all machines in one object: {"MACHINE": its output, ...}'
        raise refuse(origin, "", f"is what one machine sees, without its name; {cure}")
    problems: list[Problem] = []
    views = [view for machine, told in document.items() for view in _views(machine, told, problems)]
    asked_as = _asked_as(document, {view.far for view in views})
    views = _without_aliases(
        [replace(view, far=asked_as.get(view.far, view.far)) for view in views]
    )
    by_port: dict[tuple[str, str], _View] = {}
    for view in views:
        other = by_port.setdefault((view.machine, view.port), view)
        if other is not view:
            reason = f"sees {short(other.far)} and {short(view.far)}; a cable has one other end"
            problems.append(Problem(_where(view), f"{reason}; leave one out"))
    sees = {(view.machine, view.far) for view in views}
    cables = [cable for view in views for cable in _cable(view, by_port, sees, problems)]
    if problems:
        raise InputError(origin, *problems[:MAX_PROBLEMS])
    told = {view.far for view in views}
    hosts = mapping.get(HOST, "")
    switches = {view.far for view in views if view.switch and not fnmatchcase(view.far, hosts)}
    switches |= {v.machine for v in views if v.machine not in told and v.far not in switches}
    machines = dict.fromkeys([*document, *sorted(told)], Machine(HOST))
    machines |= dict.fromkeys(sorted(switches), Machine(ANY_SWITCH))
    return fabric_of(name, machines, cables, mapping=mapping, options=options, origin=origin)


def _asked_as(asked: Iterable[str], told: set[str]) -> dict[str, str]:
    """Return the asked machines by the names that they announce, where these differ.

    A short name stands for a full one if there is one such machine on either side.
    """
    known = set(asked)
    short_of: dict[str, tuple[list[str], list[str]]] = {}
    for names, side in ((known, 0), (told - known, 1)):
        for name in names:
            short_of.setdefault(name.partition(".")[0], ([], []))[side].append(name)
    return {
        other[0]: same[0]
        for label, (same, other) in short_of.items()
        if len(same) == len(other) == 1 and label in (same[0], other[0])
    }


def _without_aliases(views: Sequence[_View]) -> list[_View]:
    """Return the views with the ports of neighbours called as these call them, as far as known."""
    known = {(view.machine, view.port) for view in views}

    def unknown(view: _View) -> bool:
        return view.descr is not None and (view.far, view.far_port) not in known

    views = [
        replace(view, far_port=view.descr)
        if view.descr and unknown(view) and (view.far, view.descr) in known
        else view
        for view in views
    ]
    seen: dict[tuple[str, str], list[_View]] = {}
    for view in views:
        seen.setdefault((view.machine, view.far), []).append(view)

    def matched(view: _View) -> _View:
        back = [
            other
            for other in seen.get((view.far, view.machine), ())
            if unknown(other) or other.far_port == view.port
        ]
        return replace(view, far_port=back[0].port) if len(back) == 1 else view

    return [matched(view) if unknown(view) else view for view in views]


def _where(view: _View) -> str:
    return f"{view.machine}, port {view.port}"


def _cable(
    view: _View,
    by_port: Mapping[tuple[str, str], _View],
    sees: set[tuple[str, str]],
    problems: list[Problem],
) -> Iterator[Cable]:
    """Yield the cable that a view shows, unless the other end's view yields it.

    ``sees`` has each machine with each of its neighbours. Adds a problem if the views of both ends
    do not match.
    """
    back = by_port.get((view.far, view.far_port))
    if back is not None and (back.far, back.far_port) != (view.machine, view.port):
        reason = f"sees {view.far}:{view.far_port}, which sees {back.far}:{back.far_port}"
        cure = "ask both again; let each name its ports: configure lldp portidsubtype ifname"
        problems.append(Problem(_where(view), f"{reason}; {cure}"))
    elif back is None and (view.far, view.machine) in sees:
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
    # For a single interface, lldpctl prints an object and not a list.
    for one in interfaces if isinstance(interfaces, list) else [interfaces]:
        for port, seen in one.items() if isinstance(one, dict) else [("", one)]:
            try:
                yield _view(machine, port, seen)
            except (AttributeError, KeyError, TypeError, ValueError, StopIteration):
                reason = f"is {short(seen)}; give what lldpctl -f json prints there, not json0"
                problems.append(Problem(f"{machine}, port {port}", reason))


def _view(machine: str, port: str, seen: Mapping[str, Any]) -> _View:
    chassis = seen["chassis"]
    if set(chassis.get("id", {})) == {"type", "value"}:  # a neighbour without a name
        far = chassis["id"]["value"]
    else:
        ((far, chassis),) = chassis.items()
    other = seen["port"]
    by, descr = other["id"]["type"], other.get("descr")
    far_port = descr if by in ("mac", "ip") else None
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
        str(descr or "") if by == "local" else None,
        switch=bool(words & SWITCHING),
        gbps=_gbps(other.get("auto-negotiation", {}).get("current", "")),
    )


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(short(value))
    return value


def _gbps(medium: str) -> float | None:
    """Return the speed in Gbit/s of a medium such as "100GbaseCR4 - ...", or None."""
    match = _MEDIUM.match(medium)
    if match is None:
        return None
    return float(match["number"]) / (1 if match["giga"] else 1000) or None
