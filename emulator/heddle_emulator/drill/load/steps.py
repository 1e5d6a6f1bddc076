"""Read the steps of a drill, such as ``{at: 100ms, cut: l0 to s1}``.

All forms of steps::

    {at: T, cut | mend: CABLES}             l0 to s1 [key K], hop N of PROBE, links or uplinks of
                                            SWITCH or ZONE; a list of these; mend: all
    {at: T, silence: CABLES, share: 0.2}    without a share, all packets
    {at: T, degrade: CABLES, gbps: 100}
    {at: T, flap: CABLES, period: 200ms, count: 5}
    {at: T, crash | reboot: SWITCH}
    {at: T, drain | undrain: SWITCH}
    {at: T, kill: controller, point: commit}     intent, plan, commit, push or ack; at once without
    {at: T, kill | hang | resume: SWITCH or controller}        SWITCH means its agent
    {at: T, start: SWITCH or controller, empty: true}          empty: the agent finds no entries
    {at: T, slow: SWITCH, by: 50ms}
    {at: T, skew: SWITCH or controller, by: 1h}                -1h sets the clock back
    {at: T, part | join: [controller, l0]}       the management network between two
    {at: T, fail | restore: store}
    {at: T, replace: HOST, with: HOST}           in the job that has it; the job starts again
    {at: T, submit | finish: JOB}

A flap is turned into cuts and mends here, so that no world has to know it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from heddle_controller.model.files.records import short
from heddle_controller.traffic.fields import Fields
from heddle_emulator.drill.scenario import Bundle, CableName, Hop, Point, Step, StepKind, Target

_HOP = re.compile(r"hop ([0-9]+) of (\S+)")
_BUNDLE = re.compile(r"(links|uplinks) of (\S+)")
_CABLE = re.compile(r"(\S+) to (\S+?)(?: key (\S+))?")
_KINDS = {kind.value: kind for kind in StepKind}
_POINTS = {point.value: point for point in Point}
MOST_FLAPS = 1000
PAIR = 2


def read_steps(fields: Fields, name: str) -> tuple[Step, ...]:
    """Return the steps in order of time. Steps of the same time keep the order of the file."""
    steps = [
        step
        for own in fields.records(name, "a step")
        for step in _unrolled(_step(own, timed=name == "timeline"))
    ]
    return tuple(sorted(steps, key=lambda step: step.at))


def _unrolled(step: Step | None) -> Iterator[Step]:
    """Yield the step itself, or the cuts and mends of a flap."""
    if step is None:
        return
    if step.kind is not StepKind.FLAP:
        yield step
        return
    for turn in range(step.count):
        at = step.at + turn * step.period
        yield replace(step, kind=StepKind.CUT, at=at)
        yield replace(step, kind=StepKind.MEND, at=at + step.period / 2)


def _step(own: Fields, *, timed: bool) -> Step | None:
    words = [word for word in own.record if word in _KINDS]
    if len(words) != 1:
        own.only("at", *_KINDS, *_OPTIONS)
        own.fault(f"does {len(words)} things; give one of {', '.join(_KINDS)}")
        return None
    kind, value = _KINDS[words[0]], own.record[words[0]]
    known = _OPTIONS_OF.get(kind, ())
    own.only("at", words[0], *known)
    at = parse_seconds(own.record.get("at", 0))
    if at is None or (timed and "at" not in own.record):
        own.fault(f"at is {short(own.record.get('at'))}; {CURE}")
        at = 0.0
    targets = [_target(own, kind, text) for text in (value if isinstance(value, list) else [value])]
    found = tuple(target for target in targets if target is not None)
    if kind in {StepKind.PART, StepKind.JOIN} and len(found) != PAIR:
        own.fault(f"{kind.value} names {len(found)}; name two, as [controller, l0]")
    told: dict[str, Any] = {}
    for word in known:
        if word in own.record or word in _NEEDED:
            field, read = _OPTIONS[word]
            told[field] = read(own, word)
    return Step(at, kind, found, own.line, **told)


def _share(own: Fields, word: str) -> float:
    value = own.record.get(word)
    if isinstance(value, int | float) and value is not True and 0 < value <= 1:
        return float(value)
    own.fault(f"{word} is {short(value)}; give a part of all packets, above 0 and at most 1")
    return 1.0


def _time(own: Fields, word: str) -> float:
    value = parse_seconds(own.record.get(word))
    if value is not None and value > 0:
        return value
    own.fault(f"{_found(own, word)}; {CURE}")
    return 1.0


def _found(own: Fields, word: str) -> str:
    """Return a phrase that says which wrong value a word has, or that it is missing."""
    return f"{word} is {short(own.record[word])}" if word in own.record else f"has no {word}"


def _wrong_by(own: Fields, word: str) -> float:
    value = own.record.get(word)
    back = isinstance(value, str) and value.startswith("-")
    found = parse_seconds(value[1:] if back and isinstance(value, str) else value)
    if found is None:
        own.fault(f"{_found(own, word)}; {CURE}")
        return 0.0
    return -found if back else found


def _count(own: Fields, word: str) -> int:
    count = own.integer(word, 1)
    if count > MOST_FLAPS:
        own.fault(f"{word} is {count:,}; give at most {MOST_FLAPS:,}")
        return 1
    return count


def _gbps(own: Fields, word: str) -> float:
    if word not in own.record:
        own.fault("has no gbps; say what the cable carries from then on")
        return 1.0
    return own.positive(word, 1.0)


_Read = Callable[[Fields, str], Any]
_OPTIONS: dict[str, tuple[str, _Read]] = {
    "share": ("share", _share),
    "gbps": ("gbps", _gbps),
    "period": ("period", _time),
    "count": ("count", _count),
    "point": ("point", lambda own, word: own.choice(word, _POINTS)),
    "by": ("by", _wrong_by),
    "empty": ("empty", lambda own, word: own.flag(word)),
    "with": ("other", lambda own, word: own.text(word, "name the host that takes its place")),
}
"""Field of ``Step`` and the function that reads it, by the word of an option."""
_NEEDED = frozenset({"gbps", "period", "by", "with"})
_OPTIONS_OF = {
    StepKind.SILENCE: ("share",),
    StepKind.DEGRADE: ("gbps",),
    StepKind.FLAP: ("period", "count"),
    StepKind.KILL: ("point",),
    StepKind.START: ("empty",),
    StepKind.SLOW: ("by",),
    StepKind.SKEW: ("by",),
    StepKind.REPLACE: ("with",),
}


def _target(own: Fields, kind: StepKind, text: object) -> Target | None:
    if isinstance(text, str) and text:
        if match := _HOP.fullmatch(text):
            return Hop(match[2], int(match[1]))
        if match := _BUNDLE.fullmatch(text):
            return Bundle(match[1] == "uplinks", match[2])
        if match := _CABLE.fullmatch(text):
            return CableName(match[1], match[2], match[3])
        if " " not in text:
            return text
    own.fault(
        f"{kind.value} is {short(text)}; name a cable as 'l0 to s1' or 'hop 2 of PROBE',"
        " several as 'links of l0' or 'uplinks of z0', or one node"
    )
    return None


_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(us|ms|s|min|h)")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
CURE = "give a number and its unit, such as 10ms or 1.5s"


def parse_seconds(value: object) -> float | None:
    """Return the seconds of a time such as "10ms" or "1.5 s", or of a bare 0; otherwise None."""
    if value == 0 and type(value) in {int, float}:
        return 0.0
    match = _TIME.fullmatch(value.strip()) if isinstance(value, str) else None
    return float(match[1]) * _SECONDS[match[2]] if match else None
