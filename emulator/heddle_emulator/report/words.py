"""Numbers as text for people."""

from __future__ import annotations

from heddle_emulator.report.evidence import Number

NEVER = "never"
NONE = "–"
_LONG = 120.0


def seconds(value: Number) -> str:
    """Return a length of time in a suitable unit; "never" for None and infinity."""
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
    """Return a length of time for an axis, without trailing zeros."""
    number, _, unit = seconds(value).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {unit}".strip()


def significant(value: float) -> str:
    """Return three significant digits, or all digits before the point if there are more."""
    size = abs(value)
    places = 0 if size >= 100 else 1 if size >= 10 else 2  # noqa: PLR2004 - powers of ten
    return f"{value:,.{places}f}"


def percent(value: Number) -> str:
    """Return a fraction of 1 in per cent."""
    if value is None:
        return NONE
    shown = value * 100
    if abs(shown - round(shown)) < 0.05:  # noqa: PLR2004 - what one decimal would show as .0
        return f"{round(shown)} %"
    return f"{shown:.1f} %"


def quantity(value: Number, unit: str) -> str:
    """Return a value in its unit; None means infinity, which is "never" for a time."""
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
    """Return a value with the name of its unit, if that is written."""
    shown = quantity(value, unit)
    return shown if unit in {"s", "share", ""} or value is None else f"{shown} {unit}"


def count(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun, as in "1 run", "3 runs"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listed(items: list[str]) -> str:
    """Return items joined as in "a, b and c"."""
    if len(items) < 2:  # noqa: PLR2004 - nothing to join
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"
