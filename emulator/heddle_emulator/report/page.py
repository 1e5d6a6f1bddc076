"""The page of one drill: one HTML file that needs nothing beside it.

The order is that of a reader's questions: did it hold, what was expected and what came, what
happened when, where did the traffic go, how long did each stage take, how can I see it myself.
Templates escape all they are given, and a page lets its browser run no script but the one whose
hash it names; that one only adds to what can be read without it.
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
"""So many are listed without being asked for."""
EVERY_RUN = frozenset({("max", "most"), ("min", "least")})
OPEN_MAPS, MOST_OPEN = 2, 4
"""Maps that are open even if nothing in them stands out, and those that are if much does."""
FEW_MAPS = 6
"""So many are summed up without being asked for."""


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
    """The first thing that is read."""

    word: str
    claim: str
    sentence: str


def page(evidence: Evidence) -> str:
    """HTML of a drill's report."""
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
    """Whether it held, in a word, and what that rests on, in a sentence."""
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
    """What was expected, without the statistic where the bound is of every run."""
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
    """Templates, with what they all use."""
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
