"""What each agent said last of its links, how a new report is merged with it, and what follows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import orjson

from heddle_controller.model.fabric import Fabric, Ints, State, Structure
from heddle_controller.state.codec.container import DamagedError
from heddle_controller.state.records import LinkName, LinkReport
from heddle_controller.state.view import View

SEEN = "seen"

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

    def newer_than(self, other: Reporter) -> bool:
        """Whether more was heard of the same life of an agent."""
        if self.instance != other.instance:
            return not other.instance
        last = [
            max((seen.sequence for seen in one.links.values()), default=0) for one in (self, other)
        ]
        return last[0] > last[1]

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


def observed_states(structure: Structure, reporters: Mapping[str, Reporter]) -> Ints:
    """Observed state of each link: DOWN while the agent at either end says so."""
    states = np.full(len(structure.links.key), State.UP, dtype=np.int64)
    fabric = Fabric(structure, states, np.empty(0, dtype=np.int64))
    for switch, reporter in reporters.items():
        states[list(_rows(fabric, switch, reporter.down()))] = State.DOWN
    return states


def _rows(fabric: Fabric, switch: str, links: Iterable[LinkEnds]) -> Iterable[int]:
    """Rows of those links that the fabric has and that end at the switch."""
    for low, high, key in links:
        if switch in (low, high):
            yield from fabric.find_links(low, high, key)


def restated(
    fabric: Fabric, observed: Ints, reporters: Mapping[str, Reporter], turned: Iterable[LinkEnds]
) -> Ints:
    """Observed states, with those of links that turned for a reporter judged anew."""
    states = observed.copy()
    for low, high, key in turned:
        down = any((low, high, key) in reporters.get(end, Reporter()).down() for end in (low, high))
        states[list(fabric.find_links(low, high, key))] = State.DOWN if down else State.UP
    return states


def known_links(fabric: Fabric, report: LinkReport) -> LinkReport:
    """The report without links that the fabric lacks or that do not end at the switch."""
    return replace(
        report,
        links=tuple(
            seen
            for seen in report.links
            if report.switch in (seen.link.source, seen.link.target)
            and fabric.find_links(seen.link.source, seen.link.target, seen.link.key)
        ),
    )


def reporters_of(view: View) -> Mapping[str, Reporter]:
    """What agents said last, as far as it is kept, by switch."""
    return view.all(SEEN, parse_reporter)


def kept_reporter(view: View, switch: str) -> Reporter | None:
    """What is kept of one; None where nothing is."""
    return view.get(SEEN, switch, parse_reporter)


def seen_field(switch: str) -> str:
    """Where a reporter is kept."""
    return f"{SEEN}/{switch}"


def reporter_bytes(reporter: Reporter) -> bytes:
    """As it is kept."""
    links = [[*link, seen.state, seen.sequence] for link, seen in reporter.links.items()]
    return orjson.dumps([reporter.instance, links])


def parse_reporter(raw: bytes) -> Reporter:
    """Raises ``DamagedError`` for anything that ``reporter_bytes`` did not make."""
    try:
        instance, told = orjson.loads(raw)
        if not isinstance(instance, str) or not isinstance(told, list):
            raise TypeError("no text and list")  # noqa: TRY301 - told like all other damage
        links = {
            (low, high, key): Seen(State(state), sequence)
            for low, high, key, state, sequence in told
        }
    except (orjson.JSONDecodeError, TypeError, ValueError) as error:
        raise DamagedError(f"observations: {error}") from error
    return Reporter(instance, links)
