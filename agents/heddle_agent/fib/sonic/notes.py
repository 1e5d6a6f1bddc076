"""The names behind a rule's numbers, so that a restarted agent can read back its entries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from heddle_agent.fib.values import Group, Link, Match, NextHop


def note(match: Match, group: Group, addresses: Mapping[str, str]) -> str:
    """Return an entry as the text of a note."""
    told = {
        "match": match,
        "addresses": [addresses[match[0]], addresses[match[1]]],
        "primary": group.primary,
        "backup": group.backup,
        "risks": group.risks,
        "backup_risks": group.backup_risks,
    }
    return json.dumps(told)


def read(text: str) -> tuple[Match, Group, dict[str, str]]:
    """Return match, group and addresses of a note; ValueError if it is not one of ours."""
    try:
        told = json.loads(text)
        source, destination, *ports = told["match"]
        match: Match = (str(source), str(destination), int(ports[0]), int(ports[1]))
        group = Group(
            NextHop(*told["primary"]),
            NextHop(*told["backup"]) if told["backup"] else None,
            _links(told["risks"]),
            _links(told["backup_risks"]),
        )
        addresses = dict(zip(match[:2], map(str, told["addresses"]), strict=True))
    except (TypeError, KeyError, IndexError) as error:
        raise ValueError(f"not a note: {error}") from error
    return match, group, addresses


def _links(told: list[Any]) -> tuple[Link, ...]:
    return tuple(Link(*link) for link in told)
