"""Expectations of a drill: ``{recovered: pinned, p99: {most: 10ms}}``.

A measure is of a probe or, in the fluid world, also of a job, of ``demands`` or of ``all``.
Measures of the whole, such as ``utilization``, take any word. ``when: before | during | after``
narrows those that change in the course of a run::

    {slowest: all, when: after, least: 1.0}
    {utilization: links, when: during, most: 1.2}
    {iteration: big, when: after, most: 1.02}
"""

from __future__ import annotations

from heddle_controller.model.files.records import short
from heddle_controller.traffic.fields import Fields
from heddle_controller.traffic.yaml_text import Record
from heddle_emulator.drill.load.durations import CURE, seconds
from heddle_emulator.drill.measures import MEASURES, Measure
from heddle_emulator.drill.scenario import Bound, Expectation, Statistic, When

_STATISTICS = {statistic.value: statistic for statistic in Statistic}
_WHEN = {when.value: when for when in When}
_BOUNDS = {bound.value: bound for bound in Bound}


def read_expectations(fields: Fields) -> tuple[Expectation, ...]:
    """What is expected, in order of the file."""
    found = []
    for row, record in enumerate(fields.entries("expect")):
        if not isinstance(record, Record):
            fields.fault(f"expect[{row}] is {short(record)}; give {{MEASURE: PROBE, most: VALUE}}")
            continue
        own = Fields(record, f"expect[{row}] (line {record.line})", fields.problems)
        expectation = _expectation(own, record)
        if expectation is not None:
            found.append(expectation)
    return tuple(found)


def _expectation(own: Fields, record: Record) -> Expectation | None:
    own.only(*MEASURES, *_STATISTICS, *_BOUNDS, "variant", "over", "when")
    words = [word for word in record if word in MEASURES]
    if len(words) != 1:
        own.fault(f"names {len(words)} measures; give one of {', '.join(MEASURES)}")
        return None
    measure, of = MEASURES[words[0]], record[words[0]]
    if measure.per_probe and not (isinstance(of, str) and of):
        own.fault(f"{words[0]} is {short(of)}; name a probe or a job")
        return None
    statistic, bounds = _statistic(own, record)
    over = str(record.get("over", ""))
    told = _bound(own, bounds, measure, ratio=bool(over))
    if told is None:
        return None
    variant = str(record.get("variant", ""))
    name = str(of) if measure.per_probe else ""
    when = own.choice("when", _WHEN) if "when" in record else None
    if when and not measure.timed:
        timed = ", ".join(word for word, known in MEASURES.items() if known.timed)
        own.fault(f"{words[0]} is of a whole run; when goes with {timed}")
    return Expectation(words[0], name, statistic, *told, variant, over, when, record.line)


def _statistic(own: Fields, record: Record) -> tuple[Statistic, Record]:
    """The statistic and the mapping that has its bound; without one, all runs must hold."""
    words = [word for word in record if word in _STATISTICS]
    if not words:
        at_most = "least" not in record
        return (Statistic.MAX if at_most else Statistic.MIN), record
    inner = record[words[0]]
    if len(words) > 1 or not isinstance(inner, Record):
        own.fault(f"{words[0]} is {short(inner)}; give one of them, as {{most: 10ms}}")
        return _STATISTICS[words[0]], Record()
    return _STATISTICS[words[0]], inner


def _bound(
    own: Fields, bounds: Record, measure: Measure, *, ratio: bool
) -> tuple[Bound, float] | None:
    words = [word for word in bounds if word in _BOUNDS]
    if len(words) != 1:
        own.fault("has no bound; give one of most and least")
        return None
    value = bounds[words[0]]
    if measure.unit == "s" and not ratio:
        number = seconds(value)
        cure = CURE
    else:
        number = float(value) if type(value) in {int, float} else None
        cure = "give a number"
    if number is None:
        own.fault(f"{words[0]} is {short(value)}; {cure}")
        return None
    return _BOUNDS[words[0]], number
