"""The page of one drill: a single HTML file that needs no other file.

It answers a reader's questions in order: did the drill hold, what was expected and what was found,
what happened when, where did the traffic go, how long did each stage take, and how can I run it.

Templates escape all that they are given. The page allows only one script, by its hash, and that
script only adds to what can be read without it.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from heddle_emulator.report import heat, lines, timeline, words
from heddle_emulator.report.evidence import Certified, Evidence, Found, Measured, Story

FEW_EVENTS = 14
"""With at most so many events, the table of events is open at first."""
EVERY_RUN = frozenset({("max", "most"), ("min", "least")})
OPEN_MAPS, MOST_OPEN = 2, 4
"""Maps that are open if nothing in any of them stands out, and the most that are if much does."""
FEW_MAPS = 6
"""With at most so many maps, the table of the fullest cables is open at first."""


@dataclass(frozen=True, slots=True)
class Told:
    """A story with its drawings."""

    story: Story
    overview: timeline.Track | None
    episodes: tuple[timeline.Track, ...]
    more_episodes: int
    plots: tuple[lines.Plot, ...]
    heats: tuple[heat.Heat, ...]
    shown: frozenset[str]
    """Titles of the maps that are open."""
    certificates: tuple[Certified, ...]


@dataclass(frozen=True, slots=True)
class VerdictBox:
    """The box at the top of the page."""

    word: str
    claim: str
    sentence: str


def page(evidence: Evidence) -> str:
    """Return the HTML of a drill's report."""
    return (
        environment()
        .get_template("drill.html")
        .render(
            evidence=evidence,
            verdict=verdict(evidence),
            stories=[_told(story, evidence.stories) for story in evidence.stories],
            bars=lines.bars(evidence.convergence),
            abouts={one.measure.partition(" ")[0]: one.about for one in evidence.measured},
            measured=[(one, lines.strip(one)) for one in evidence.measured],
        )
    )


def verdict(evidence: Evidence) -> VerdictBox:
    """Return whether the drill held: one word, what it proves, and a sentence with the reason."""
    failed = [one for one in evidence.expectations if not one.held]
    if evidence.fault:
        return VerdictBox("Not run", evidence.proves, f"It ended early: {evidence.fault}")
    total = words.count(len(evidence.expectations), "expectation")
    over = words.count(_runs(evidence), "run")
    if evidence.held:
        every = {1: "The one expectation", 2: "Both expectations"}
        held = every.get(len(evidence.expectations), f"All {total}")
        return VerdictBox("Held", evidence.proves, f"{held} held, over {over}.")
    return VerdictBox("Failed", evidence.proves, f"{_failed(failed)} Of {total}, {_not(failed)}.")


def _failed(failed: list[Found]) -> str:
    if not failed:
        return ""
    first = failed[0]
    return f"{_sentence(first.what)} was to be {expected(first)}, and was {first.got}."


def expected(found: Found) -> str:
    """Return what was expected, without the statistic if the bound holds for every run."""
    if (found.statistic, found.bound) in EVERY_RUN:
        return found.wanted.removeprefix(f"{found.statistic} ")
    return found.wanted


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _not(failed: list[Found]) -> str:
    return f"{len(failed)} did not hold"


def _runs(evidence: Evidence) -> int:
    return max((len(one.runs) for one in evidence.measured), default=0)


def _told(story: Story, stories: tuple[Story, ...]) -> Told:
    maps = heat.heats(story)
    told = sorted((one for one in maps if one.told), key=lambda one: (not one.broken, -one.worst))
    shown = {one.title for one in told[:MOST_OPEN] or maps[:OPEN_MAPS]}
    return Told(
        story=story,
        overview=timeline.overview(story),
        episodes=timeline.reactions(story),
        more_episodes=max(0, len(timeline.episodes(story)) - timeline.MOST_EPISODES),
        plots=lines.plots(story, stories),
        heats=maps,
        shown=frozenset(shown),
        certificates=story.certificates,
    )


def _quantity(value: float | None, measured: Measured) -> str:
    return words.quantity(value, measured.unit)


@cache
def environment() -> Environment:
    """Return the template environment, with the filters and values that all pages use."""
    found = Environment(
        loader=PackageLoader("heddle_emulator.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = found.get_template("page.js").render()
    found.filters |= {
        "seconds": words.seconds,
        "percent": words.percent,
        "shown": _quantity,
        "expected": expected,
    }
    found.globals |= {
        "bands": heat.BANDS,
        "light": heat.LIGHT,
        "dark": heat.DARK,
        "count": words.count,
        "event_words": timeline.WORDS,
        "few_events": FEW_EVENTS,
        "few_maps": FEW_MAPS,
        "strip_width": lines.STRIP,
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii"),
    }
    return found
