"""Finds the node that an address belongs to, in a fabric.json."""

from __future__ import annotations

from heddle_agent.host.trace import plain_address


def nodes_by_address(fabric: object) -> dict[str, str]:
    """Return node ids by address: addresses of nodes, and of the ends of links.

    Raises ValueError if this is not a fabric.json.
    """
    try:
        nodes = fabric["nodes"]  # type: ignore[index]
        found = {plain_address(str(n["address"])): str(n["id"]) for n in nodes if n.get("address")}
        for edge in fabric["edges"]:  # type: ignore[index]
            for end in ("source", "target"):
                if address := edge.get(f"{end}_address"):
                    found[plain_address(str(address))] = str(edge[end])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this is no fabric.json: {error!r}") from None
    return found
