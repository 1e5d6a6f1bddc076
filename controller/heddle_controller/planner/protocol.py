"""Questions and answers of the pipe: how each is packed at one end and unpacked at the other.

A question is a name, a fabric and what ``ask_...`` packs; ``answered`` does in the planning process
what is asked, and packs what ``take_...`` unpacks. Either packs in the order in which the other
unpacks: both mirrors go through the same steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from heddle_controller.model.job import Iteration, Job
from heddle_controller.model.plan import Certificate, Plan, Turn
from heddle_controller.place.ask import Choices, PlacementAsk
from heddle_controller.planner.mirror import FabricMirror
from heddle_controller.planner.planning import Planned
from heddle_controller.planner.port import PlanAnswer, PlanningFailed, Trial, WhatIf
from heddle_controller.state.records import Intent

if TYPE_CHECKING:  # who only asks need not load what answers
    from heddle_controller.planner.core import PlanningCore

Given = ParamSpec("Given")
Result = TypeVar("Result")


class Question(NamedTuple):
    """What is asked, about which fabric."""

    kind: str
    fabric: str
    packed: Any


class Failed(NamedTuple):
    """An answer that there is none, and why."""

    reason: str


def ask_plan(mirror: FabricMirror, intent: Intent, standing: Plan | None) -> Any:  # noqa: ANN401 - packed
    """The question for a plan."""
    return _pack_standing(mirror, standing), mirror.pack_intent(intent)


def ask_prepare(mirror: FabricMirror, standing: Plan) -> Any:  # noqa: ANN401 - packed
    """The question to make a repair ready."""
    return mirror.pack_plan(standing)


def ask_reoptimise(mirror: FabricMirror, standing: Plan, worth_moving: float) -> Any:  # noqa: ANN401
    """The question for a better plan."""
    return mirror.pack_plan(standing), worth_moving


def ask_turns(mirror: FabricMirror, standing: Plan, iterations: Sequence[Iteration]) -> Any:  # noqa: ANN401
    """The question when jobs had best begin their iterations."""
    return mirror.pack_plan(standing), tuple(iterations)


def ask_what_if(
    mirror: FabricMirror, intent: Intent, supposed: Intent, standing: Plan | None
) -> Any:  # noqa: ANN401
    """The question for a supposed plan."""
    before = _pack_standing(mirror, standing)
    return before, mirror.pack_intent(intent), mirror.pack_intent(supposed)


def ask_of_job(
    mirror: FabricMirror, intent: Intent, what: PlacementAsk | Job, standing: Plan | None
) -> Any:  # noqa: ANN401
    """The question where a job could run, or how it would fare there."""
    return _pack_standing(mirror, standing), mirror.pack_intent(intent), what


def take_choices(_: FabricMirror, packed: Any) -> Choices:  # noqa: ANN401 - packed
    """The answer to "choose"."""
    found: Choices = packed
    return found


def take_trial(_: FabricMirror, packed: Any) -> Trial:  # noqa: ANN401 - packed
    """The answer to "try" and "settle"."""
    found: Trial = packed
    return found


def take_plan(mirror: FabricMirror, packed: Any) -> PlanAnswer:  # noqa: ANN401 - packed
    """The answer to ``ask_plan``."""
    planned, refused = packed
    return PlanAnswer(None if planned is None else _unpack_planned(mirror, planned), refused)


def take_reoptimised(mirror: FabricMirror, packed: Any) -> Planned | Certificate | None:  # noqa: ANN401
    """The answer to ``ask_reoptimise``."""
    if packed is None or isinstance(packed, Certificate):
        return packed
    return _unpack_planned(mirror, packed)


def take_turns(_: FabricMirror, packed: Any) -> tuple[Turn, ...]:  # noqa: ANN401 - packed
    """The answer to ``ask_turns``."""
    found: tuple[Turn, ...] = packed
    return found


def take_what_if(mirror: FabricMirror, packed: Any) -> WhatIf:  # noqa: ANN401 - packed
    """The answer to ``ask_what_if``."""
    before, after, comparison = packed
    return WhatIf(mirror.unpack_plan(before), mirror.unpack_plan(after), comparison)


def answered(core: PlanningCore, mirror: FabricMirror, question: Question) -> Any:  # noqa: ANN401 - packed
    """What the planning process answers.

    Raises:
        PlanningFailed: both mirrors know what was asked all the same.
        Exception: that is not so any more.
    """
    kind, fabric, packed = question
    if kind == "plan":
        standing = _unpack_standing(mirror, packed[0])
        answer = _or_failed(core.plan, mirror.unpack_intent(packed[1]), standing)
        planned = answer.planned
        return None if planned is None else _pack_planned(mirror, planned), answer.refused
    if kind == "prepare":
        return core.prepare(fabric, mirror.unpack_plan(packed))
    if kind in {"reoptimise", "turns"}:
        function: Callable[..., object] = core.turns if kind == "turns" else core.reoptimise
        found = _or_failed(function, mirror.unpack_plan(packed[0]), packed[1])
        return _pack_planned(mirror, found) if isinstance(found, Planned) else found
    standing = _unpack_standing(mirror, packed[0])
    intent = mirror.unpack_intent(packed[1])
    if kind == "choose":
        return _or_failed(core.choose, intent, packed[2], standing)
    if kind in {"try", "settle"}:
        settled = kind == "settle"
        return _or_failed(core.try_job, intent, packed[2], standing, settled=settled)
    supposed = mirror.unpack_intent(packed[2])
    what_if = _or_failed(core.what_if, intent, supposed, standing)
    before, after = mirror.pack_plan(what_if.before), mirror.pack_plan(what_if.after)
    return before, after, what_if.comparison


def _or_failed(
    function: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs
) -> Result:
    try:
        return function(*args, **kwargs)
    except MemoryError:
        raise  # a process that has run out of memory is of no more use
    except Exception as error:
        raise PlanningFailed(f"{type(error).__name__}: {error}") from error


def _pack_standing(mirror: FabricMirror, standing: Plan | None) -> Any:  # noqa: ANN401 - packed
    return None if standing is None else (mirror.pack_plan(standing),)


def _unpack_standing(mirror: FabricMirror, packed: Any) -> Plan | None:  # noqa: ANN401 - packed
    return None if packed is None else mirror.unpack_plan(packed[0])


def _pack_planned(mirror: FabricMirror, planned: Planned) -> Any:  # noqa: ANN401 - packed
    entries = mirror.pack_entries(planned.entries)
    return mirror.pack_plan(planned.plan), entries, planned.changed_count


def _unpack_planned(mirror: FabricMirror, packed: Any) -> Planned:  # noqa: ANN401 - packed
    plan, entries, changed_count = packed
    held = mirror.unpack_entries(entries)
    return Planned(mirror.unpack_plan(plan), held, changed_count)
