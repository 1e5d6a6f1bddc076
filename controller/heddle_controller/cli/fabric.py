"""``heddle fabric``: put fabrics, take links and switches out of service, look at both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import orjson

from heddle.v1 import fabric_pb2 as pb
from heddle_controller.cli.client import Client, request_id
from heddle_controller.cli.failure import Failure, House
from heddle_controller.cli.options import (
    INPUT_FILE,
    OUTPUT_FILE,
    STATE,
    STATES,
    last_part,
    link_ref,
    link_text,
    state_word,
    with_client,
)
from heddle_controller.cli.output import echo_json, echo_pairs, echo_table
from heddle_controller.importers import load_fabric
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import fabric_document, save_fabric_file
from heddle_controller.serve.codec import common, names
from heddle_controller.serve.codec import fabric as codec


@click.group(cls=House)
def fabric() -> None:
    """Put fabrics, and take links and switches out of service."""


@fabric.command("import")
@click.argument("file", type=INPUT_FILE)
@click.option("--format", "form", type=click.Choice(["auto", "node-link", "csv"]), default="auto")
@click.option(
    "--map",
    "mapping",
    metavar="ROLE=COLUMN,...",
    default="",
    help="Columns of a CSV file by what they hold: host=ip,leaf=ASW,spine=PSW,core=DSW.",
)
@click.option("--name", help="Name on the controller; else that in the file.")
@click.option("--out", type=OUTPUT_FILE, help="Write fabric.json here; needs no controller.")
@with_client
def import_fabric(
    client: Client, file: Path, *, form: str, mapping: str, name: str | None, out: Path | None
) -> None:
    """Read a fabric from FILE and put it to the controller, or convert it with --out."""
    loaded = load_fabric(file, form, _mapping(mapping))
    if out is not None:
        _save(loaded, out)
        return
    wanted = names.check_id(name or client.named_fabric or loaded.name or "", "--name")
    request = pb.PutFabricRequest(
        fabric=codec.fabric_to_pb(wanted, loaded), request_id=request_id()
    )
    _echo_fabric(client, client.call(client.fabrics.PutFabric, request))


def _mapping(text: str) -> dict[str, str]:
    """Columns by role of ``role=column,...``."""
    pairs = [pair.partition("=") for pair in text.split(",") if pair]
    if not all(role and equals and column for role, equals, column in pairs):
        raise Failure(f"--map {text!r} is malformed: write role=column, joined by commas")
    return {role.strip(): column.strip() for role, _, column in pairs}


@fabric.command("export")
@click.option(
    "--out", type=OUTPUT_FILE, default=Path("-"), help="File to write; else standard output."
)
@with_client
def export_fabric(client: Client, out: Path) -> None:
    """Write the fabric as fabric.json (gzip where the name ends in .gz)."""
    stored = client.call(client.fabrics.GetFabric, pb.GetFabricRequest(name=client.fabric))
    _save(codec.fabric_from_pb(stored), out)


def _save(loaded: Fabric, out: Path) -> None:
    """Write a fabric.json; ``-`` is standard output."""
    if str(out) == "-":
        click.echo(orjson.dumps(fabric_document(loaded), option=orjson.OPT_INDENT_2).decode())
    else:
        save_fabric_file(loaded, out)


@fabric.command("list")
@with_client
def list_fabrics(client: Client) -> None:
    """List the fabrics of the controller."""
    found = list(_all_fabrics(client))
    if client.json:
        echo_json(found)
        return
    rows = [(last_part(f.name), f.title, common.time_text(f.update_time)) for f in found]
    echo_table(["name", "title", "updated"], rows)


def _all_fabrics(client: Client) -> Iterator[pb.Fabric]:
    request = pb.ListFabricsRequest(page_size=1000)
    while True:
        answer = client.call(client.fabrics.ListFabrics, request)
        yield from answer.fabrics
        if not answer.next_page_token:
            return
        request.page_token = answer.next_page_token


@fabric.command("show")
@click.option("--links", is_flag=True, help="List every link, not only those that are not up.")
@with_client
def show_fabric(client: Client, *, links: bool) -> None:
    """Show what the fabric is made of, and what of it is not up."""
    if client.json:
        echo_json(client.call(client.fabrics.GetFabric, pb.GetFabricRequest(name=client.fabric)))
        return
    if not links:
        stored = client.call(client.fabrics.GetFabric, pb.GetFabricRequest(name=client.fabric))
        _echo_fabric(client, stored)
    shown = list(_links(client, not_up_only=not links))
    if shown:
        _echo_links(shown)


def _links(client: Client, *, not_up_only: bool) -> Iterator[pb.Link]:
    request = pb.ListLinksRequest(parent=client.fabric, page_size=10000, not_up_only=not_up_only)
    while True:
        answer = client.call(client.fabrics.ListLinks, request)
        yield from answer.links
        if not answer.next_page_token:
            return
        request.page_token = answer.next_page_token


def _echo_links(links: Sequence[pb.Link]) -> None:
    rows = [
        (
            link_text(link.source, link.target, link.key),
            f"{link.gbps:g}",
            state_word(link.admin_state),
            state_word(link.oper_state),
            common.time_text(link.state_time),
        )
        for link in links
    ]
    echo_table(["link", "gbps", "wanted", "observed", "since"], rows)


def _echo_fabric(client: Client, stored: pb.Fabric) -> None:
    if client.json:
        stored.ClearField("nodes")
        stored.ClearField("links")
        echo_json(stored)
        return
    parsed = codec.fabric_from_pb(stored)
    not_up = [node for node in stored.nodes if node.admin_state > STATES["up"]]
    echo_pairs(
        {
            "name": last_part(stored.name),
            "title": stored.title,
            "nodes": _counted(
                pb.NodeKind.Name(n.kind).removeprefix("NODE_KIND_").lower() for n in stored.nodes
            ),
            "links": _counted(_tiers(parsed)),
            "zones": len(parsed.structure.zone_names) or "",
            "hosts": len(parsed.structure.host_names) or "",
            "switches not up": ", ".join(f"{n.id} ({state_word(n.admin_state)})" for n in not_up),
            "links not up": sum(_not_up(link) for link in stored.links),
            "updated": common.time_text(stored.update_time),
        }
    )


def _not_up(link: pb.Link) -> bool:
    return max(link.admin_state, link.oper_state) > STATES["up"]


def _tiers(fabric: Fabric) -> Iterator[str]:
    tiers = fabric.structure.tiers
    return (tiers[tier] for tier in fabric.structure.tier_of_arc[::2].tolist())


def _counted(words: Iterator[str]) -> str:
    """``512 nic, 64 leaf``, the most frequent first."""
    return ", ".join(f"{count} {word}" for word, count in Counter(words).most_common())


@fabric.command("link")
@click.argument("link", metavar="A,B[,KEY]")
@click.argument("state", type=STATE)
@with_client
def set_link(client: Client, link: str, state: str) -> None:
    """Bring a link up, take it down, or drain it."""
    request = pb.SetLinkStateRequest(
        fabric=client.fabric,
        link=link_ref(link),
        admin_state=STATES[state],
        request_id=request_id(),
    )
    answer = client.call(client.fabrics.SetLinkState, request)
    if client.json:
        echo_json(answer)
    else:
        _echo_links([answer])


@fabric.command("switch")
@click.argument("node")
@click.argument("state", type=STATE)
@with_client
def set_switch(client: Client, node: str, state: str) -> None:
    """Bring a switch up, take it down, or drain it, with all its links."""
    request = pb.SetSwitchStateRequest(
        fabric=client.fabric, node=node, admin_state=STATES[state], request_id=request_id()
    )
    answer = client.call(client.fabrics.SetSwitchState, request)
    if client.json:
        echo_json(answer)
    else:
        echo_pairs({"switch": answer.id, "wanted": state_word(answer.admin_state)})


@fabric.command("watch")
@click.option("--seconds", type=float, help="Stop after so long.")
@with_client
def watch_fabric(client: Client, seconds: float | None) -> None:
    """Print what is not up, then every change."""
    request = pb.WatchFabricRequest(name=client.fabric)
    for event in client.watch(client.fabrics.WatchFabric, request, seconds):
        if client.json:
            echo_json(event)
        elif line := _event_line(event):
            click.echo(line)


def _event_line(event: pb.FabricEvent) -> str:
    match event.WhichOneof("event"):
        case "fabric":
            return f"fabric {last_part(event.fabric.name)} put"
        case "link":
            link = event.link
            wanted, observed = state_word(link.admin_state), state_word(link.oper_state)
            name = link_text(link.source, link.target, link.key)
            return f"link {name} wanted {wanted}, observed {observed}"
        case "node":
            return f"switch {event.node.id} wanted {state_word(event.node.admin_state)}"
    return ""
