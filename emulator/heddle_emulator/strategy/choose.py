"""Any strategy by its name: how it carries some flows over a fabric.

Beside those that ``names`` knows, which choose with no controller, there are Heddle
("te"), two limits ("spray", "ideal"), and paths that anybody wrote down ("plan:FILE", a
plan.json).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from heddle_controller.model.errors import InputError, refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.plan_file import load_plan
from heddle_controller.model.flows import Flows
from heddle_emulator.strategy.carried import Carried, whole
from heddle_emulator.strategy.limits import ideal, spray
from heddle_emulator.strategy.names import PLAIN, strategy
from heddle_emulator.strategy.te import te
from heddle_emulator.walk import walk

LIMITS: dict[str, Callable[[Fabric, Flows], Carried]] = {"spray": spray, "ideal": ideal}
TE, GIVEN = "te", "plan:"
DEFAULT = ("ecmp", "e-ecmp:32", "static", "dmodk", "greedy", TE, "spray", "ideal")


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What a strategy made of some flows."""

    carried: Carried
    lower_bound: float = 0.0
    """Worst utilisation that no way of carrying all the flows is below, if it proves any."""


def _file_of(name: str) -> str:
    """The plan that a strategy names, if it does."""
    return name.removeprefix(GIVEN) if name.startswith(GIVEN) else ""


def names_of(text: str) -> tuple[str, ...]:
    """The strategies of a list such as "ecmp,te", each once.

    Raises:
        InputError: there is none, or one is not known.
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise refuse("strategies", text, f"names none; give some of {', '.join(DEFAULT)}")
    for name in names:
        if name not in LIMITS and name != TE and not _file_of(name):
            try:
                strategy(name)
            except InputError as error:
                known = ", ".join([*PLAIN, "e-ecmp:Q", TE, *LIMITS, "plan:FILE"])
                raise refuse("strategies", name, f"is not known; give some of {known}") from error
    return names


def choose(name: str, fabric: Fabric, flows: Flows, seed: int) -> Choice:
    """Carry flows by a strategy that ``names_of`` let pass; ``seed`` draws its hashes.

    Raises:
        ClientError, ControllerError, TimeoutError: for "te", its controller or a switch
            did not answer.
        InputError: for "plan:FILE", it is no plan of the fabric.
    """
    if name in LIMITS:
        return Choice(LIMITS[name](fabric, flows))
    if path := _file_of(name):
        return Choice(whole(flows, load_plan(Path(path), fabric, flows).paths))
    if name == TE:
        planned = te(fabric, flows, seed)
        bound = planned.lower_bound if planned.routed == len(flows) else 0.0
        return Choice(whole(flows, planned.paths), bound)
    found = strategy(name)
    sent = found.sent(flows)
    return Choice(whole(sent, walk(fabric, sent, found.choice(fabric, sent, seed)).paths()))
