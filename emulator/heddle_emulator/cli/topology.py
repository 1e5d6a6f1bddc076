"""``heddle-emulator topology NAME``: fabric files from the builders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.files.fabric_file import (
    fabric_document,
    parse_fabric,
    save_fabric_file,
)
from heddle_emulator import topology as builders
from heddle_emulator.cli.output import echo

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _out(command: _Command) -> _Command:
    return click.option(
        "--out",
        required=True,
        type=click.Path(path_type=Path, dir_okay=False),
        help="File to write; .gz compresses.",
    )(command)


def _common(command: _Command) -> _Command:
    """Add the options that every builder has."""
    for option in (
        click.option("--name", help="Name written into the file."),
        click.option(
            "--table-size",
            type=click.IntRange(min=0),
            help="Exact-match entries a switch holds. Default: no limit.",
        ),
        click.option(
            "--forwarding",
            type=click.Choice(["programmed", "ecmp"]),
            default="programmed",
            show_default=True,
            help="programmed: agents program the switches. ecmp: switches only hash.",
        ),
        click.option("--ipv6", is_flag=True, help="Give nodes IPv6 addresses instead of IPv4."),
        _out,
    ):
        command = option(command)
    return command


def _count(name: str, default: int | None, text: str) -> Callable[[_Command], _Command]:
    # To click, even a default of None is one, and then the option is not required.
    presence: dict[str, Any] = {"required": True} if default is None else {"default": default}
    return click.option(f"--{name}", type=int, show_default=True, help=text, **presence)


_nic = click.option("--nic-gbps", type=float, default=400.0, show_default=True)
_uplink = click.option("--uplink-gbps", type=float, default=400.0, show_default=True)
_hosts = _count("nics-per-host", 8, "NICs of a host.")


@click.group()
def topology() -> None:
    """Write a fabric file of a given shape, or of a published cluster."""


def _save(fabric: Fabric, out: Path) -> None:
    parse_fabric(fabric_document(fabric), fabric.name)  # what no reader takes is not written
    save_fabric_file(fabric, out)
    nics = len(fabric.rows_of_kind(NodeKind.NIC))
    echo(
        f"{out}: {fabric.name}, {nics:,} NICs, {fabric.node_count - nics:,} switches,"
        f" {fabric.link_count:,} links"
    )


def _build(
    builder: Callable[..., Fabric], out: Path, *, forwarding: str, ipv6: bool, **options: object
) -> None:
    """Build and save a fabric; options that are not given keep the builder's defaults."""
    fabric = builder(**{name: value for name, value in options.items() if value is not None})
    fabric = builders.with_ipv6(fabric) if ipv6 else fabric
    _save(builders.hashing(fabric) if forwarding == "ecmp" else fabric, out)


@topology.command()
@_count("leaves", None, "Leaf switches.")
@_count("spines", None, "Spine switches.")
@_count("nics-per-leaf", None, "NICs under each leaf.")
@_count("parallel", 1, "Links between each leaf and spine.")
@_hosts
@_uplink
@_nic
@_common
def clos(**options: Any) -> None:  # noqa: ANN401 - click hands over what the options say
    """Two tiers; every leaf has links to every spine."""
    _build(builders.clos, **options)


@topology.command("three-tier")
@_count("zones", None, "Zones.")
@_count("leaves", None, "Leaf switches of a zone.")
@_count("spines", None, "Spine switches of a zone.")
@_count("nics-per-leaf", None, "NICs under each leaf.")
@_count("cores", None, "Core switches in all.")
@click.option(
    "--taper",
    type=float,
    default=1.0,
    show_default=True,
    help="Capacity of a spine to its leaves, divided by its capacity to the cores.",
)
@click.option(
    "--wiring",
    type=click.Choice(["plane", "mesh"]),
    default="plane",
    show_default=True,
    help="plane: spine i has links to the cores of plane i. mesh: every spine has links "
    "to every core.",
)
@_hosts
@_uplink
@_nic
@_common
def three_tier(**options: Any) -> None:  # noqa: ANN401 - click hands over what the options say
    """Zones of two tiers, joined by cores; the taper gives the number of links to cores."""
    _build(builders.three_tier, **options)


@topology.command()
@_count("units", 1, "Scalable units.")
@_count("servers", 32, "Servers of a unit.")
@_count("rails", 8, "NICs of a server, and leaves of a unit.")
@_count("spines", 16, "Spine switches; with --rail-only, of each rail.")
@_count("parallel", 2, "Links between each leaf and spine.")
@click.option("--rail-only", is_flag=True, help="No link joins the rails.")
@_uplink
@_nic
@_common
def rail(**options: Any) -> None:  # noqa: ANN401 - click hands over what the options say
    """Rail-optimised: the n-th NIC of every server of a unit on one leaf."""
    _build(builders.rail_optimised, **options)


@topology.command("dual-tor")
@_count("pairs", None, "Pairs of leaves.")
@_count("spines", None, "Spine switches in all.")
@_count("nics-per-pair", None, "NICs under each pair, each with a link to both leaves.")
@click.option(
    "--planes",
    type=click.IntRange(1, 2),
    default=1,
    show_default=True,
    help="2: the two leaves of a pair have separate spines.",
)
@_hosts
@_uplink
@click.option(
    "--nic-gbps",
    type=float,
    default=200.0,
    show_default=True,
    help="Speed of each of the two links of a NIC.",
)
@_common
def dual_tor(**options: Any) -> None:  # noqa: ANN401 - click hands over what the options say
    """Two tiers whose NICs have a link to each leaf of a pair."""
    _build(builders.dual_tor, **options)


@topology.command("random-regular")
@_count("switches", None, "Switches.")
@_count("degree", None, "Links of each switch to other switches.")
@_count("nics-per-switch", None, "NICs on each switch.")
@click.option("--link-gbps", type=float, default=400.0, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@_hosts
@_nic
@_common
def random_regular(**options: Any) -> None:  # noqa: ANN401 - click hands over what the options say
    """Plain switches in a connected random graph of one degree."""
    _build(builders.random_regular, **options)


@topology.command()
@_count("routers", None, "Switches of a group.")
@_count("global-links", None, "Links of each switch to other groups.")
@_count("nics-per-switch", None, "NICs on each switch.")
@click.option("--link-gbps", type=float, default=400.0, show_default=True)
@_hosts
@_nic
@_common
def dragonfly(**options: Any) -> None:  # noqa: ANN401 - click hands over what the options say
    """Plain switches in groups, one link between any two groups."""
    _build(builders.dragonfly, **options)


def _published(name: str) -> click.Command:
    def write(out: Path) -> None:
        _save(builders.published(name), out)

    return click.command(name, help=f"Published: {builders.PUBLISHED[name].shape}.")(_out(write))


for _name in builders.PUBLISHED:
    topology.add_command(_published(_name))
