"""``heddle fabric``: fabrics as a whole, and taking links and switches out of service.

``heddle fabric import`` also reads fabrics of other systems, and uploads or converts them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import orjson

from heddle.names import link_name, value_name
from heddle.text import some_of
from heddle.v1 import fabric_pb2 as pb
from heddle_controller.cli.client import Terms
from heddle_controller.cli.completing import FABRICS, SWITCHES, SWITCHES_AND_LINKS
from heddle_controller.cli.failure import CommandGroup, Failure
from heddle_controller.cli.options import (
    INPUT_FILE,
    OUTPUT_FILE,
    STATE,
    STATES,
    Command,
    last_part,
    link_ref,
    state_word,
    with_client,
)
from heddle_controller.cli.output import (
    document_of,
    echo,
    echo_json,
    echo_lines,
    echo_pairs,
    echo_raw_json,
    echo_table,
)
from heddle_controller.cli.watching import of_fabric, watchable
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
from heddle_controller.serve.codec import names, times

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
    echo_fabric(client, client.api.fabrics.PutFabric(pb.PutFabricRequest(fabric=message)))


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


def echo_fabric(client: Terms, stored: pb.Fabric) -> None:
    """Print the size of a fabric, and which of its switches and links are not up."""
    if client.json:
        stored.ClearField("nodes")
        stored.ClearField("links")
        echo_json(stored)
        return
    kinds = {node.id: node.kind for node in stored.nodes}
    tiers = (sorted((kinds[link.source], kinds[link.target])) for link in stored.links)
    switches = [node for node in stored.nodes if node.admin_state > STATES["up"]]
    aside = [node for node in stored.nodes if node.condition]
    links = [link for link in stored.links if max(link.admin_state, link.oper_state) > STATES["up"]]
    echo_pairs(
        {
            "name": last_part(stored.name),
            "title": stored.title,
            "nodes": _counted((kind,) for kind in kinds.values()),
            "links": _counted(map(tuple, tiers)),
            "zones": len({node.zone for node in stored.nodes} - {""}) or "",
            "hosts": len({node.host for node in stored.nodes} - {""}) or "",
            "switches not up": ", ".join(f"{n.id} ({state_word(n.admin_state)})" for n in switches),
            "switches set aside": "; ".join(f"{n.id} ({n.condition})" for n in aside),
            "links not up": len(links),
            "updated": times.time_text(stored.update_time),
        }
    )


def _counted(things: Iterable[tuple[pb.NodeKind.ValueType, ...]]) -> str:
    """Return counts of kinds, or of pairs of kinds, the most frequent first.

    ``512 nic, 64 leaf`` or ``512 nic-leaf, 256 leaf-spine``.
    """
    counts = Counter(things).most_common()
    return ", ".join(f"{count} {'-'.join(map(_kind, kinds))}" for kinds, count in counts)


def _kind(kind: pb.NodeKind.ValueType) -> str:
    return value_name(pb.NodeKind.DESCRIPTOR, kind, "NODE_KIND_").lower()


@click.group(cls=CommandGroup)
def fabric() -> None:
    """Upload and delete fabrics, and take links and switches out of service."""


fabric.add_command(import_fabric)


@fabric.command("export")
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


@fabric.command("list")
@with_client
def list_fabrics(client: Terms) -> None:
    """List the fabrics of the controller."""
    found = client.api.list_fabrics()
    if client.json:
        echo_json([_outline(one) for one in found])
        return
    rows = [(last_part(f.name), f.title, times.time_text(f.update_time)) for f in found]
    echo_table(["name", "title", "updated"], rows)


@fabric.command("delete")
@click.argument("name", shell_complete=FABRICS)
@with_client
def delete_fabric(client: Terms, name: str) -> None:
    """Delete the fabric NAME with all its plans.

    It is refused while the fabric has jobs, demand sets or reservations. Agents remove their
    entries, those that are away when they come back. The audit trail stays.
    """
    client.api.delete_fabric(names.check_id(name, "NAME"))
    if client.json:
        echo_json({"deleted": [name]})
    else:
        echo(f"deleted {name}")


def _outline(stored: pb.Fabric) -> dict[str, object]:
    """Return a fabric as JSON without its nodes and links, where answers leave them out."""
    told = document_of(stored)
    return {name: value for name, value in told.items() if name not in ("nodes", "links")}


@fabric.command("show")
@click.option("--links", is_flag=True, help="List every link, not only links that are not up.")
@with_client
@watchable(of_fabric)
def show_fabric(client: Terms, *, links: bool) -> None:
    """Show the size of the fabric, and all links and switches that are not up."""
    if client.json:
        echo_json(client.api.fabrics.GetFabric(pb.GetFabricRequest(name=client.fabric)))
        return
    if not links:
        stored = client.api.fabrics.GetFabric(pb.GetFabricRequest(name=client.fabric))
        echo_fabric(client, stored)
    shown = client.api.list_links(not_up_only=not links)
    if shown:
        _echo_links(shown)


def _echo_links(links: Sequence[pb.Link]) -> None:
    rows = [
        (
            link_name(link.source, link.target, link.key),
            f"{link.gbps:g}",
            state_word(link.admin_state),
            state_word(link.oper_state),
            times.time_text(link.state_time),
            _condition(link),
        )
        for link in links
    ]
    echo_table(["link", "gbps", "wanted", "observed", "since", "condition"], rows)


def _condition(link: pb.Link) -> str:
    """Describe what agents find wrong with a link; empty if nothing is."""
    words = [link.condition]
    if link.loss_ratio:
        words.append(f"loses {link.loss_ratio:.2%}")
    if link.rate_ratio:
        words.append(f"{link.rate_ratio:.0%} of its speed")
    return ", ".join(word for word in words if word)


@fabric.command("link")
@click.argument("link", metavar="A,B[,KEY]", shell_complete=SWITCHES_AND_LINKS)
@click.argument("state", type=STATE)
@with_client
def set_link(client: Terms, link: str, state: str) -> None:
    """Bring a link up, take it down, or drain it."""
    request = pb.SetLinkStateRequest(
        fabric=client.fabric,
        link=link_ref(link),
        admin_state=STATES[state],
    )
    answer = client.api.fabrics.SetLinkState(request)
    if client.json:
        echo_json(answer)
    else:
        _echo_links([answer])


@fabric.command("switch")
@click.argument("node", shell_complete=SWITCHES)
@click.argument("state", type=STATE)
@with_client
def set_switch(client: Terms, node: str, state: str) -> None:
    """Bring a switch up, take it down, or drain it, with all its links."""
    request = pb.SetSwitchStateRequest(fabric=client.fabric, node=node, admin_state=STATES[state])
    answer = client.api.fabrics.SetSwitchState(request)
    if client.json:
        echo_json(answer)
    else:
        echo_pairs({"switch": answer.id, "wanted": state_word(answer.admin_state)})


@fabric.command("watch")
@click.option("--seconds", type=float, help="Stop after this many seconds.")
@with_client
def watch_fabric(client: Terms, seconds: float | None) -> None:
    """Print all links and switches that are not up, and then each change."""
    for event in client.api.watch_fabric(seconds):
        if client.json:
            outline = event.HasField("fabric")
            echo_json({"fabric": _outline(event.fabric)} if outline else event)
        elif line := _event_line(event):
            echo(line)


def _event_line(event: pb.FabricEvent) -> str:
    match event.WhichOneof("event"):
        case "fabric":
            return f"fabric {last_part(event.fabric.name)} put"
        case "link":
            link = event.link
            wanted, observed = state_word(link.admin_state), state_word(link.oper_state)
            name = link_name(link.source, link.target, link.key)
            return f"link {name} wanted {wanted}, observed {observed}"
        case "node":
            return f"switch {event.node.id} wanted {state_word(event.node.admin_state)}"
    return ""
