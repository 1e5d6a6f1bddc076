"""``heddle fabric``: fabrics as a whole, and taking links and switches out of service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import click

from heddle.names import link_name, value_name
from heddle.v1 import common_pb2
from heddle.v1 import fabric_pb2 as pb
from heddle_controller.cli.client import Terms
from heddle_controller.cli.completing import FABRICS, SWITCHES, SWITCHES_AND_LINKS
from heddle_controller.cli.failure import LazyGroup
from heddle_controller.cli.options import (
    STATE,
    STATES,
    last_part,
    naming_link,
    state_word,
    with_client,
)
from heddle_controller.cli.output import (
    document_of,
    echo,
    echo_json,
    echo_pairs,
    echo_table,
)
from heddle_controller.cli.watching import of_fabric, watchable
from heddle_controller.serve.codec import names, times


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


@click.group(
    cls=LazyGroup,
    package="heddle_controller.cli",
    modules={"export": "fabric_files", "import": "fabric_files"},
)
def fabric() -> None:
    """Upload and delete fabrics, and take links and switches out of service."""


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

    def change(named: common_pb2.LinkRef) -> pb.Link:
        return client.api.fabrics.SetLinkState(
            pb.SetLinkStateRequest(fabric=client.fabric, link=named, admin_state=STATES[state])
        )

    answer = naming_link(client, link, change)
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
    synced = False
    for event in client.api.watch_fabric(seconds):
        synced |= event.synced
        if client.json:
            outline = event.HasField("fabric")
            echo_json({"fabric": _outline(event.fabric)} if outline else event)
        elif line := _event_line(event, synced=synced):
            echo(line)


def _event_line(event: pb.FabricEvent, *, synced: bool) -> str:
    match event.WhichOneof("event"):
        case "fabric":
            return f"fabric {last_part(event.fabric.name)}{' put' if synced else ''}"
        case "link":
            link = event.link
            wanted, observed = state_word(link.admin_state), state_word(link.oper_state)
            name = link_name(link.source, link.target, link.key)
            return f"link {name} wanted {wanted}, observed {observed}"
        case "node":
            return f"switch {event.node.id} wanted {state_word(event.node.admin_state)}"
    return ""
