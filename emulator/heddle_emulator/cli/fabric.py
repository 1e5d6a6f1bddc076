"""Options that several commands share: a fabric by name, links that are down, packet costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.files.fabric_file import load_fabric_file
from heddle_emulator.cli.output import bytes_of, echo
from heddle_emulator.fluid.wire import ROCE, Wire
from heddle_emulator.play.play import FOLLOWED, Setting
from heddle_emulator.play.stage import NVLINK_GBPS
from heddle_emulator.topology import clos, published

_Command = TypeVar("_Command", bound=Callable[..., Any])

down = click.option(
    "--down", multiple=True, metavar="A,B[,KEY]", help="A link that is down; may be repeated."
)


def named_fabric(name: str | None) -> Fabric:
    """Return a fabric file or the published cluster of that name; for None, a small Clos."""
    if name is None:
        return clos(leaves=16, spines=16, nics_per_leaf=16, name="clos-256")
    path = Path(name)
    return (
        load_fabric_file(path, note=partial(echo, err=True)) if path.exists() else published(name)
    )


def without(fabric: Fabric, down: Iterable[str]) -> Fabric:
    """Return the fabric with links down, which are given as "A,B" or "A,B,KEY".

    Raises:
        InputError: A link is not in the fabric.
    """
    rows: list[int] = []
    for text in down:
        found = fabric.links_named(text)
        if not found:
            raise refuse("down", text, "is not a link of the fabric; write A,B or A,B,KEY")
        rows += found
    return fabric.with_links(dict.fromkeys(rows, State.DOWN))


def wire(command: _Command) -> _Command:
    """Add the options for the cost of packets."""
    return _with(
        command,
        click.option(
            "--payload",
            "payload_bytes",
            default=ROCE.payload_bytes,
            show_default=True,
            help="Payload of a packet, in bytes.",
        ),
        click.option(
            "--header",
            "header_bytes",
            default=ROCE.header_bytes,
            show_default=True,
            help="Headers, preamble and gap of a packet, in bytes.",
        ),
        click.option(
            "--startup-us",
            default=ROCE.startup_seconds * 1e6,
            show_default=True,
            help="Start-up time of a message, in microseconds.",
        ),
        click.option(
            "--hop-us",
            default=ROCE.hop_seconds * 1e6,
            show_default=True,
            help="Delay of each link, in microseconds, without the time to send the packet.",
        ),
        click.option(
            "--cut-through",
            is_flag=True,
            help="Switches forward a packet before all of it has arrived.",
        ),
    )


def setting(command: _Command) -> _Command:
    """Add the options for the cost of packets and for what is inside a host."""
    more = _with(
        _followed(command),
        click.option(
            "--piece",
            default="128K",
            show_default=True,
            help="Size of the pieces that trees and chains pass on; 0 is the smallest possible.",
        ),
        click.option(
            "--nvlink-gbps",
            default=NVLINK_GBPS,
            show_default=True,
            help="Speed of a GPU's NVLink in each direction.",
        ),
    )
    return wire(more)


def _followed(command: _Command) -> _Command:
    """Add the option for how closely rings and trees are followed."""
    return click.option(
        "--follow",
        "followed",
        type=click.IntRange(0),
        default=FOLLOWED,
        show_default=True,
        help="Number of messages of rings and trees that are followed one by one; more move "
        "in step. A larger number is more exact and slower.",
    )(command)


def _with(command: _Command, *options: Callable[[_Command], _Command]) -> _Command:
    """Add options to a command; help shows them in that order."""
    for option in reversed(options):
        command = option(command)
    return command


def settings_of(words: Mapping[str, Any]) -> Setting:
    """Return what the options of ``setting`` say.

    Raises:
        InputError: See ``wire_of``; or the NVLink rate is not above 0.
    """
    piece = words["piece"].strip()
    told = replace(wire_of(words), piece_bytes=bytes_of(piece, "--piece") if piece != "0" else 0)
    return Setting(told, words["nvlink_gbps"], words["followed"])


def wire_of(words: Mapping[str, Any]) -> Wire:
    """Return what the options of ``wire`` say.

    Raises:
        InputError: A number is below 0, or is 0 where it must be more.
    """
    for name, value in words.items():
        if isinstance(value, bool | str):
            continue
        least_is_open = name in {"payload_bytes", "nvlink_gbps"}
        if not (value > 0 if least_is_open else value >= 0) or value == float("inf"):
            cure = "above 0" if least_is_open else "of 0 or more"
            raise refuse("options", name.replace("_", "-"), f"is {value:g}; give a number {cure}")
    return Wire(
        payload_bytes=int(words["payload_bytes"]),
        header_bytes=int(words["header_bytes"]),
        startup_seconds=words["startup_us"] / 1e6,
        hop_seconds=words["hop_us"] / 1e6,
        store_and_forward=not words["cut_through"],
    )
