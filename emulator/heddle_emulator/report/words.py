"""Numbers as people write them."""

from __future__ import annotations

from heddle_emulator.report.evidence import Number

NEVER = "never"
NONE = "–"
_LONG = 120.0


def seconds(value: Number) -> str:
    """A length of time in the unit that suits it."""
    if value is None or value == float("inf"):
        return NEVER
    size = abs(value)
    if size == 0:
        return "0"
    if size < 1e-3:  # noqa: PLR2004 - the prefixes of the SI
        return f"{value * 1e6:.0f} µs"
    if size < 1:
        return f"{significant(value * 1e3)} ms"
    if size < _LONG:
        return f"{significant(value)} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s"


def tick(value: float) -> str:
    """A round time, with no zeros that say nothing."""
    number, _, unit = seconds(value).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}".strip()


def significant(value: float) -> str:
    """Three digits that count, but never fewer than those before the point."""
    size = abs(value)
    places = 0 if size >= 100 else 1 if size >= 10 else 2  # noqa: PLR2004 - powers of ten
    return f"{value:,.{places}f}"


def percent(value: Number) -> str:
    """A share of 1, in per cent."""
    if value is None:
        return NONE
    shown = value * 100
    if abs(shown - round(shown)) < 0.05:  # noqa: PLR2004 - what one decimal would show as .0
        return f"{round(shown)} %"
    return f"{shown:.1f} %"


def quantity(value: Number, unit: str) -> str:
    """A value of a measure in its unit; what is infinite never came."""
    if unit == "s":
        return seconds(value)
    if value is None:
        return "∞"
    if unit == "share":
        return percent(value)
    if float(value).is_integer():
        return f"{int(value):,}"
    return significant(value)


def with_unit(value: Number, unit: str) -> str:
    """The same with the unit's name where it has one that is written."""
    shown = quantity(value, unit)
    return shown if unit in {"s", "share", ""} or value is None else f"{shown} {unit}"


def count(number: int, one: str, many: str = "") -> str:
    """As in "1 run", "3 runs"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listed(items: list[str]) -> str:
    """As in "a, b and c"."""
    if len(items) < 2:  # noqa: PLR2004 - nothing to join
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"
