"""Names that a shell completes: of jobs, demand sets, fabrics, switches and links.

The controller is asked for them. If it does not answer soon, or refuses, nothing is completed and
nothing is printed, since any output would end up on the line that the user types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click

from heddle.client import Client, Credentials, HeddleError
from heddle.v1 import fabric_pb2

Complete = Callable[[click.Context, click.Parameter, str], list[str]]
_PATIENCE = 3.0
"""Seconds to wait for a controller. Few people wait longer for a completion."""
SERVER = "127.0.0.1:7400"
"""Address of a controller, unless another is named."""


def _asked(names: Callable[[Client, str], Iterable[str]]) -> Complete:
    """Return a function for ``shell_complete`` that offers names which a controller returns.

    ``names`` gets a client and the word so far.
    """

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        given = {**ctx.find_root().params, **{k: v for k, v in ctx.params.items() if v}}
        ca, cert, key, token = (
            given.get(name) for name in ("tls_ca", "tls_cert", "tls_key", "token_file")
        )
        try:
            with Client(
                given.get("server") or SERVER,
                fabric=given.get("fabric") or "",
                credentials=Credentials(ca, cert, key, token),
                timeout=_PATIENCE,
                patience=0.0,
                note=lambda *_: None,
            ) as client:
                found = set(names(client, incomplete))
        except (HeddleError, ValueError):
            return []
        return sorted(name for name in found if name.startswith(incomplete))

    return complete


def _fabric(client: Client) -> fabric_pb2.Fabric:
    return client.fabrics.GetFabric(fabric_pb2.GetFabricRequest(name=client.fabric()))


def _switches(client: Client, _: str) -> Iterable[str]:
    nic = fabric_pb2.NODE_KIND_NIC
    return (node.id for node in _fabric(client).nodes if node.kind != nic)


def _links(client: Client, incomplete: str) -> Iterable[str]:
    """Return links as ``A,B`` whose first end is written already, and switches before that."""
    fabric, (end, comma, _) = _fabric(client), incomplete.partition(",")
    if not comma:
        return (node.id for node in fabric.nodes if node.kind != fabric_pb2.NODE_KIND_NIC)
    ends = ((link.source, link.target, link.key) for link in fabric.links)
    return [
        f"{end},{other},{key}" if key != "0" else f"{end},{other}"
        for source, target, key in ends
        for one, other in ((source, target), (target, source))
        if one == end
    ]


def _last(names: Iterable[str]) -> Iterable[str]:
    """Return the last parts of resource names."""
    return (name.rpartition("/")[2] for name in names)


JOBS = _asked(lambda client, _: _last(one.name for one in client.list_jobs()))
RESERVATIONS = _asked(lambda client, _: _last(one.name for one in client.list_reservations()))
DEMAND_SETS = _asked(lambda client, _: _last(one.name for one in client.list_demand_sets()))
FABRICS = _asked(lambda client, _: _last(one.name for one in client.list_fabrics()))
SWITCHES = _asked(_switches)
SWITCHES_AND_LINKS = _asked(_links)
