"""What each agent said last of its links, and how a new report is merged with it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from heddle_controller.model.fabric import State
from heddle_controller.reconcile.records import LinkName, LinkReport
from heddle_controller.store.codec.container import DamagedError

LinkEnds = tuple[str, str, str]
"""Lesser node id, greater node id, key as a string."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one agent says of one link."""

    state: State
    sequence: int


@dataclass(frozen=True, slots=True)
class Reporter:
    """What one agent says of all the links it has spoken of."""

    instance: str = ""
    links: Mapping[LinkEnds, Seen] = field(default_factory=dict)

    def down(self) -> set[LinkEnds]:
        """The links it says are down."""
        return {link for link, seen in self.links.items() if seen.state == State.DOWN}

    def after(self, report: LinkReport) -> Reporter:
        """With a report taken in; see ``FabricStore.report_links`` for the rule."""
        said = {ends_of(o.link): Seen(o.state, o.sequence) for o in report.links}
        if report.instance != self.instance:
            return Reporter(report.instance, said)
        kept = {link: seen for link, seen in self.links.items() if not report.full or link in said}
        newer = {
            link: seen
            for link, seen in said.items()
            if link not in kept or seen.sequence > kept[link].sequence
        }
        return Reporter(self.instance, kept | newer)


def ends_of(link: LinkName) -> LinkEnds:
    """A link's name in a form that compares."""
    low, high = sorted((link.source, link.target))
    return low, high, str(link.key)


class Observations:
    """The reporters of every fabric; touched in the store's thread only."""

    def __init__(self) -> None:
        self._fabrics: dict[str, dict[str, Reporter]] = {}

    def of(self, connection: sqlite3.Connection, fabric: str) -> dict[str, Reporter]:
        """The reporters of a fabric by switch, read from the file the first time."""
        if fabric not in self._fabrics:
            rows = connection.execute(
                "SELECT switch, instance, body FROM observations WHERE fabric = ?", (fabric,)
            )
            self._fabrics[fabric] = {
                switch: Reporter(instance, _parse(body)) for switch, instance, body in rows
            }
        return self._fabrics[fabric]

    def keep(self, fabric: str, switch: str, reporter: Reporter) -> None:
        """Remember what a switch's agent says now, once that is durable."""
        self._fabrics[fabric][switch] = reporter


def _parse(body: bytes) -> dict[LinkEnds, Seen]:
    try:
        return {
            (low, high, key): Seen(State(state), sequence)
            for low, high, key, state, sequence in orjson.loads(body)
        }
    except (orjson.JSONDecodeError, TypeError, ValueError) as error:
        raise DamagedError(f"observations: {error}") from error
