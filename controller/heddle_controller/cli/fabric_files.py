"""``heddle fabric import`` and ``export``: files of fabrics, also of other systems."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import orjson

from heddle.text import some_of
from heddle.v1 import fabric_pb2 as pb
from heddle_controller.cli.client import Terms
from heddle_controller.cli.fabric import echo_fabric
from heddle_controller.cli.failure import Failure
from heddle_controller.cli.options import INPUT_FILE, OUTPUT_FILE, Command, with_client
from heddle_controller.cli.output import echo, echo_lines, echo_raw_json, progress
from heddle_controller.importers import (
    ImportOptions,
    clab_text,
    dot_text,
    load_fabric,
    parse_mapping,
)
from heddle_controller.importers.load import FORMATS
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.files.content import write_content
from heddle_controller.model.files.fabric_file import fabric_document, save_fabric_file
from heddle_controller.serve.codec import fabric as codec
from heddle_controller.serve.codec import names

TEXTS: dict[str, Callable[[Fabric], str]] = {"dot": dot_text, "containerlab": clab_text}
"""Formats other than fabric.json in which a fabric can be written."""

DEFAULTS = ImportOptions()

CHOICES: dict[str, tuple[type, str]] = {
    "nics_per_host": (int, "CSV: NICs of a host"),
    "nic_gbps": (float, "CSV: speed of a NIC"),
    "uplink_gbps": (float, "CSV: speed of one cable from leaf to spine; else that of a NIC"),
    "spines_per_group": (int, "CSV: spines a named spine stands for; else the NICs of a host"),
    "cores_per_plane": (int, "CSV: cores that join the spines of one place"),
    "core_taper": (float, "CSV: a spine's speed down over its speed up"),
    "link_gbps": (float, "Speed of links whose speed the file does not state"),
    "speed_unit": (str, "JSON: unit of bare numbers: bps, K, M, G or T"),
}
"""Options of the importers: type and meaning."""


def with_choices(command: Command) -> Command:
    """Add the importers' options to a command."""
    for name, (kind, text) in reversed(CHOICES.items()):
        default = getattr(DEFAULTS, name)
        shown = {"default": default, "show_default": default is not None}
        command = click.option(f"--{name.replace('_', '-')}", type=kind, help=f"{text}.", **shown)(
            command
        )
    return command


@click.command("import")
@click.argument("file", type=INPUT_FILE)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="auto",
    show_default=True,
    help="heddle: fabric.json. node-link: JSON with other field names. csv: hosts and "
    "their switches. lldp: an object that maps each machine to its output of "
    "lldpctl -f json.",
)
@click.option(
    "--map",
    "mapping",
    metavar="OURS=THEIRS,...",
    default="",
    help="Which columns or fields mean what, such as "
    "host=ip,leaf=ASW,spine=PSW,core=DSW. For ibnetdiscover, lldp and containerlab: "
    "which names are of which kind, such as host=gpu*,leaf=tor*,spine=agg*.",
)
@click.option("--name", help="Name on the controller. Default: the name in the file.")
@click.option(
    "--out",
    type=OUTPUT_FILE,
    help="Write fabric.json here instead of uploading it; .gz compresses, - is standard output.",
)
@with_choices
@with_client
def import_fabric(
    client: Terms,
    file: Path,
    *,
    form: str,
    mapping: str,
    name: str | None,
    out: Path | None,
    **choices: Any,  # noqa: ANN401 - see CHOICES
) -> None:
    """Read a fabric from FILE and upload it, or convert it with --out.

    Links and switches that are drained or down on the controller stay so.
    """
    with progress(f"reading {file}"):
        loaded = load_fabric(
            file,
            format=form,
            mapping=parse_mapping(mapping),
            options=ImportOptions(**choices),
            note=partial(echo, err=True),
        )
    if out is not None:
        save(loaded, out)
        return
    given = name or client.named_fabric
    source = "--name" if name else "--fabric" if given else f"{file}: name (give another by --name)"
    wanted = names.check_id(given or loaded.name, source)
    wanted_name, etag = names.fabric_name(wanted), ""
    if any(known.name == wanted_name for known in client.api.list_fabrics()):
        stored = client.api.fabrics.GetFabric(pb.GetFabricRequest(name=wanted_name))
        # With the etag, a drain that begins in between is not lost: the put is refused.
        loaded, etag = _with_states_of(codec.fabric_from_pb(stored), loaded), stored.etag
    message = codec.fabric_to_pb(wanted, loaded)
    message.etag = etag
    with progress(f"storing fabric {wanted}"):
        stored = client.api.fabrics.PutFabric(pb.PutFabricRequest(fabric=message))
    echo_fabric(client, stored)


def _with_states_of(stored: Fabric, loaded: Fabric) -> Fabric:
    """Give what is up in a file the state that it has on the controller; note what is not up.

    A file rarely states what operators have drained, and an import must not end their drains.
    """
    ids, links = stored.structure.nodes.ids, stored.structure.links
    switches: dict[int, State] = {}
    for row in np.flatnonzero(stored.node_state).tolist():
        here = loaded.structure.index.get(ids[row])
        if here is not None and loaded.structure.nodes.kind[here] != NodeKind.NIC:
            switches[here] = State(int(stored.node_state[row]))
    cables: dict[int, State] = {}
    for row in np.flatnonzero(stored.link_state).tolist():
        found = loaded.find_links(ids[links.a[row]], ids[links.b[row]], links.key[row])
        cables |= dict.fromkeys(found, State(int(stored.link_state[row])))
    switches = {row: state for row, state in switches.items() if not loaded.node_state[row]}
    cables = {row: state for row, state in cables.items() if not loaded.link_state[row]}
    kept = [(loaded.structure.nodes.ids[row], state) for row, state in switches.items()]
    kept += [(loaded.link_name(row), state) for row, state in cables.items()]
    if kept:
        told = some_of([f"{name} ({state.name.lower()})" for name, state in kept])
        cure = "'heddle undrain' or 'heddle fabric switch|link NAME up' ends this"
        echo(f"note: this stays as it is on the controller: {told}; {cure}", err=True)
    return loaded.with_nodes(switches).with_links(cables)


def save(loaded: Fabric, out: Path) -> None:
    """Write a fabric.json; ``-`` is standard output."""
    if str(out) == "-":
        echo_raw_json(orjson.dumps(fabric_document(loaded), option=orjson.OPT_INDENT_2))
    else:
        save_fabric_file(loaded, out)


def save_text(text: str, out: Path) -> None:
    """Write text; ``-`` is standard output."""
    if str(out) == "-":
        echo_lines(text)
    else:
        write_content(out, text.encode())


@click.command("export")
@click.option(
    "--out", type=OUTPUT_FILE, default=Path("-"), help="File to write. Default: standard output."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["heddle", *TEXTS]),
    default="heddle",
    show_default=True,
    help="heddle: fabric.json. dot: Graphviz. containerlab: a .clab.yml.",
)
@click.option(
    "--from", "file", type=INPUT_FILE, help="Read this fabric.json instead of asking a controller."
)
@with_client
def export_fabric(client: Terms, out: Path, *, form: str, file: Path | None) -> None:
    """Write the fabric to a file; .gz compresses."""
    if file is not None:
        loaded = load_fabric(file, note=partial(echo, err=True))
    else:
        stored = client.api.fabrics.GetFabric(pb.GetFabricRequest(name=client.fabric))
        loaded = codec.fabric_from_pb(stored)
    if form in TEXTS:
        if client.json:
            raise Failure(f"--format {form} is no document: leave --json and --yaml out")
        save_text(TEXTS[form](loaded), out)
    else:
        save(loaded, out)
