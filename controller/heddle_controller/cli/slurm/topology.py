"""``heddle slurm topology``: prints the fabric as a file for Slurm's topology plug-ins."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import click

from heddle.names import natural
from heddle.units import host_units
from heddle.v1 import fabric_pb2 as pb
from heddle_controller.cli.client import Terms
from heddle_controller.cli.failure import Failure
from heddle_controller.cli.options import with_client
from heddle_controller.cli.output import echo, echo_json
from heddle_controller.cli.slurm.allocation import NODE_NAME
from heddle_controller.model.host_lists import expand_list, fold

_ODD = re.compile(r"[^A-Za-z0-9_.+-]")
LONGEST_NAME = 60
"""Most characters in the name of a switch; newer versions of Slurm accept 64."""


@dataclass
class Unit:
    """Hosts with links to the same switches: those of a leaf, or of a rail-optimised unit."""

    name: str
    zone: str
    hosts: list[str]


@click.command("topology")
@click.option(
    "--format",
    "form",
    type=click.Choice(["conf", "yaml", "block"]),
    default="conf",
    show_default=True,
    help="conf: topology.conf with a tree. yaml: topology.yaml with a tree (Slurm 25.05 "
    "and newer). block: topology.yaml with a block for each leaf.",
)
@click.option("--top", default="top", show_default=True, help="Name of the switch at the top.")
@click.option(
    "--zones", is_flag=True, help="Add a switch for each zone between the leaves and the top."
)
@click.option(
    "--nodes",
    metavar="LIST",
    help="Only these hosts, such as n[0-127]; a note names those that the fabric does not have. "
    "[default: all hosts]",
)
@with_client
def topology(client: Terms, form: str, top: str, nodes: str | None, *, zones: bool) -> None:
    """Print a topology file for Slurm: the leaves, and one switch above them.

    Slurm needs a tree, and is faster with few switches. Hosts with links to the same leaves, such
    as a rail-optimised unit, are below one switch. Spines are left out. The hosts must have the
    same names as Slurm's nodes.
    """
    fabric = client.api.fabrics.GetFabric(pb.GetFabricRequest(name=client.fabric))
    units = units_of(fabric, _chosen(nodes), top)
    if client.json:
        echo_json({unit.name: unit.hosts for unit in units})
    elif form == "conf":
        _print_conf(units, top, zones=zones)
    elif form == "yaml":
        _print_yaml(units, top, zones=zones)
    else:
        _print_blocks(units)


def _chosen(nodes: str | None) -> set[str] | None:
    try:
        return None if nodes is None else set(expand_list(nodes))
    except ValueError as error:
        raise Failure(f"--nodes: {error}") from None


def units_of(fabric: pb.Fabric, chosen: set[str] | None, top: str) -> list[Unit]:
    """Return the hosts, grouped by the switches that they have links to.

    Args:
        fabric: The fabric, with nodes and links.
        chosen: Only these hosts; None for all.
        top: A name that no unit may have.

    Raises:
        Failure: There are no such hosts, or Slurm could not read a name.
    """
    if not NODE_NAME.fullmatch(top):
        raise Failure(f"--top: Slurm cannot read {top[:80]!r}: use letters, digits, '-', '_', '.'")
    found = host_units(fabric)
    if not found:
        raise Failure("the fabric names no hosts: give its NICs a 'host', and import it again")
    known = {host for unit in found for host in unit.hosts}
    if missing := sorted((chosen or set()) - known, key=natural):
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        text = f"the fabric has no host {missing[0][:80]!r}{more}"
        if chosen is not None and chosen.isdisjoint(known):
            raise Failure(f"--nodes: {text}: name hosts such as {min(known, key=natural)!r}")
        echo(f"note: {text}: below no switch", err=True)
    zones = {node.zone for node in fabric.nodes if node.kind != pb.NODE_KIND_NIC}
    names = _Names({top, *map(_plain, zones)})
    units = []
    for unit in found:
        hosts = [host for host in unit.hosts if chosen is None or host in chosen]
        for host in hosts:
            _check_host(host, linked=bool(unit.switches))
        if hosts and unit.switches:
            units.append(Unit(names.new(unit.switches), unit.zone, hosts))
    if not units:
        raise Failure("no host has a link to a switch: see heddle fabric show --links")
    return units


def _check_host(host: str, *, linked: bool) -> None:
    if not NODE_NAME.fullmatch(host):
        raise Failure(
            f"Slurm cannot read the name of host {host[:80]!r}: it takes letters, digits, '-', "
            "'_' and '.'; name Slurm's nodes by --nodes"
        )
    if not linked:
        echo(f"note: host {host!r} has no link, and is left out", err=True)


def _plain(name: str) -> str:
    return _ODD.sub("-", name)[:LONGEST_NAME]


class _Names:
    """Makes names that Slurm can read, each different."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = set(taken)

    def new(self, switches: Sequence[str]) -> str:
        """Return ``l0`` for one leaf, ``l0+7`` for that leaf and seven more."""
        more = f"+{len(switches) - 1}" if switches[1:] else ""
        wanted = name = _plain(switches[0]) + more
        for number in range(2, 2 + len(self._taken)):
            if name not in self._taken:
                break
            name = f"{wanted}.{number}"
        self._taken.add(name)
        return name


def _by_zone(units: Sequence[Unit], top: str) -> Mapping[str, list[str]]:
    """Return unit names by the switch of their zone; units without a zone are below the top."""
    found: dict[str, list[str]] = {}
    for unit in units:
        found.setdefault(_plain(unit.zone) or top, []).append(unit.name)
    return found


def _above(units: Sequence[Unit], top: str, *, zones: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield the switches above units, each with the names below it."""
    names = [unit.name for unit in units]
    if not zones:
        yield top, names
        return
    by_zone = dict(_by_zone(units, top))
    direct = by_zone.pop(top, [])
    yield from by_zone.items()
    yield top, [*by_zone, *direct]


def _print_conf(units: Sequence[Unit], top: str, *, zones: bool) -> None:
    echo("# Written by heddle slurm topology; for TopologyPlugin=topology/tree.")
    for unit in units:
        echo(f"SwitchName={unit.name} Nodes={fold(unit.hosts)}")
    for name, below in _above(units, top, zones=zones):
        echo(f"SwitchName={name} Switches={fold(below)}")


def _print_yaml(units: Sequence[Unit], top: str, *, zones: bool) -> None:
    _print_head("tree")
    echo("    switches:")
    for name, below in reversed(list(_above(units, top, zones=zones))):
        echo(f'      - switch: "{name}"')
        echo(f'        children: "{fold(below)}"')
    for unit in units:
        echo(f'      - switch: "{unit.name}"')
        echo(f'        nodes: "{fold(unit.hosts)}"')


def _print_blocks(units: Sequence[Unit]) -> None:
    _print_head("block")
    echo("    block_sizes:")
    echo(f"      - {min(len(unit.hosts) for unit in units)}")
    echo("    blocks:")
    for unit in units:
        echo(f'      - block: "{unit.name}"')
        echo(f'        nodes: "{fold(unit.hosts)}"')


def _print_head(kind: str) -> None:
    echo("# Written by heddle slurm topology; topology.yaml of Slurm 25.05 and newer.")
    echo("---")
    echo("- topology: heddle")
    echo("  cluster_default: true")
    echo(f"  {kind}:")
