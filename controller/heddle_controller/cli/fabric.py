"""``heddle fabric``: put fabrics, take links and switches out of service, look at both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from heddle.names import link_name
from heddle.v1 import fabric_pb2 as pb
from heddle_controller.cli.client import Terms
from heddle_controller.cli.fabric_import import (
    TEXTS,
    echo_fabric,
    import_fabric,
    save,
    save_text,
)
from heddle_controller.cli.failure import CommandGroup, Failure
from heddle_controller.cli.options import (
    INPUT_FILE,
    OUTPUT_FILE,
    STATE,
    STATES,
    last_part,
    link_ref,
    state_word,
    with_client,
)
from heddle_controller.cli.output import echo, echo_json, echo_pairs, echo_table
from heddle_controller.cli.watching import of_fabric, watchable
from heddle_controller.importers import load_fabric
from heddle_controller.serve.codec import common
from heddle_controller.serve.codec import fabric as codec


@click.group(cls=CommandGroup)
def fabric() -> None:
    """Upload fabrics, and take links and switches out of service."""


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
        loaded = load_fabric(file)
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
        echo_json(found)
        return
    rows = [(last_part(f.name), f.title, common.time_text(f.update_time)) for f in found]
    echo_table(["name", "title", "updated"], rows)


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
            common.time_text(link.state_time),
            _condition(link),
        )
        for link in links
    ]
    echo_table(["link", "gbps", "wanted", "observed", "since", "condition"], rows)


def _condition(link: pb.Link) -> str:
    """What agents find wrong with a link, in words; empty where nothing is."""
    words = [link.condition]
    if link.loss_ratio:
        words.append(f"loses {link.loss_ratio:.2%}")
    if link.rate_ratio:
        words.append(f"{link.rate_ratio:.0%} of its speed")
    return ", ".join(word for word in words if word)


@fabric.command("link")
@click.argument("link", metavar="A,B[,KEY]")
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
@click.argument("node")
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
            echo_json(event)
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
