"""Finds out which interface is which link of the fabric.

Either the alias of an interface says so, ``NEIGHBOUR,KEY`` or ``NEIGHBOUR,KEY,GBPS`` (``ip link set
eth1 alias spine0,0,400``), or a file does, if aliases have other uses::

    {"eth1": {"neighbour": "spine0", "key": "0", "gbps": 400, "address": "198.18.0.1"}}

``key`` is "0" by default. ``gbps`` is the rate that the link should have; without it, the link is
never slow. ``address`` is the neighbour's address on the link, which is known anyway if the
interface has a /31, a /30 or a /127. With ``"probe": false`` the link is not probed.

While the agent runs, interfaces may vanish and be created again: one with the name or the alias of
one that vanished takes its place. They may also get other addresses.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from heddle.text import number
from heddle_agent.fib import NextHop
from heddle_agent.watch import rtnetlink

ALIAS = "alias"
_FORM = re.compile(r"([^\s,]+),([^\s,]+)(?:,([^\s,]+))?")
_FIELDS: Mapping[str, tuple[type, ...]] = {
    "neighbour": (str,),
    "key": (str,),
    "address": (str,),
    "gbps": (float, int),
    "probe": (bool,),
}
_MOST_GBPS = 1e6


@dataclass(frozen=True, slots=True)
class Port:
    """One link of the switch, and the interface that it uses."""

    hop: NextHop
    """The neighbour and the link key, and the neighbour's address if it is known."""
    interface: str
    index: int
    carries: bool
    """Whether it had carrier when it was found."""
    probe: bool = True
    """Whether it is probed if the neighbour's address is known."""
    gbps: float = 0.0
    """The rate that the link should have, in Gbit/s; 0 if unknown."""
    given: bool = False
    """Whether a file gives the neighbour's address, whatever addresses the interface has."""


def find_ports(where: str, switch: str) -> list[Port]:
    """Return all links: by aliases if ``where`` is "alias", else by the file at that path.

    Raises ValueError, which says what is wrong and how to correct it.
    """
    found = {interface.name: interface for interface in rtnetlink.interface_states()}
    told = _by_alias(found.values()) if where == ALIAS else _by_file(Path(where))
    known = rtnetlink.neighbours()
    ports: list[Port] = []
    for name, fields in told.items():
        interface = found.get(name)
        if interface is None:
            raise ValueError(f"--interfaces {where}: this machine has no interface {name}")
        given = str(fields.get("address", ""))
        address = given or known.get(interface.number, [""])[0]
        hop = NextHop(str(fields["neighbour"]), str(fields.get("key", "0")), address)
        if hop.node == switch:
            raise ValueError(f"--interfaces {where}: {name} leads to {switch} itself")
        if any(port.hop.port == hop.port for port in ports):
            raise ValueError(
                f"--interfaces {where}: two interfaces lead to {hop.node} key {hop.key}:"
                " give parallel links keys of their own"
            )
        probe = bool(fields.get("probe", True))
        speed = _speed(where, name, fields.get("gbps", 0.0))
        found_port = Port(
            hop, name, interface.number, interface.carries, probe, speed, given=bool(given)
        )
        ports.append(found_port)
    if not ports:
        raise ValueError(
            f"--interfaces {where}: no interface is a link of {switch}; mark each, for example"
            " ip link set eth1 alias spine0,0"
        )
    return ports


def _by_alias(found: Iterable[rtnetlink.InterfaceState]) -> dict[str, Mapping[str, object]]:
    told: dict[str, Mapping[str, object]] = {}
    for interface in found:
        match = _FORM.fullmatch(interface.alias)
        if match:
            speed = match[3] or 0.0
            told[interface.name] = {"neighbour": match[1], "key": match[2], "gbps": speed}
    return told


def alias_of(interface: rtnetlink.InterfaceState) -> tuple[str, str] | None:
    """Return the neighbour and the key in an interface's alias; None if it names no link."""
    match = _FORM.fullmatch(interface.alias)
    return (match[1], match[2]) if match else None


def _speed(where: str, name: str, told: object) -> float:
    try:
        gbps = number(str(told))
    except ValueError:
        gbps = -1.0
    if not 0 <= gbps < _MOST_GBPS:
        raise ValueError(f"--interfaces {where}: {name} has speed {told}: give it in Gbit/s")
    return gbps


def _by_file(path: Path) -> dict[str, Mapping[str, object]]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"--interfaces {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"--interfaces {path} is not JSON: {error}") from error
    if not isinstance(told, dict):
        raise ValueError(f"--interfaces {path}: give an object, interface to link")  # noqa: TRY004
    for name, fields in told.items():
        _check(path, name, fields)
    return told


def _check(path: Path, name: str, fields: object) -> None:
    at = f"--interfaces {path}: {name}"
    if not isinstance(fields, dict) or "neighbour" not in fields:
        raise ValueError(f'{at}: give {{"neighbour": NODE}}')
    for field, value in fields.items():
        kinds = _FIELDS.get(field)
        if kinds is None:
            raise ValueError(f"{at}: {field} is not one of {', '.join(_FIELDS)}")
        if type(value) not in kinds or value == "":
            raise ValueError(f"{at}: {field} is {value!r}, not a {kinds[0].__name__}")
    if "address" in fields:
        try:
            ipaddress.ip_address(fields["address"])
        except ValueError:
            raise ValueError(f"{at}: address {fields['address']!r} is no IP address") from None
