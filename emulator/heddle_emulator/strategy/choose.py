"""Strategies by name: how each carries some flows over a fabric.

Some need no controller: ECMP, E-ECMP, static, dmodk, greedy. The others are Heddle itself ("te"),
two limits ("spray", "ideal"), and paths from a file ("plan:FILE", a plan.json).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from heddle_controller.model.errors import InputError, refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.plan_file import NEW, ROUTE_CHANGED, load_plan
from heddle_controller.model.files.records import short
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths
from heddle_emulator.strategy.carried import Carried, whole
from heddle_emulator.strategy.greedy import greedy_paths
from heddle_emulator.strategy.limits import ideal, spray
from heddle_emulator.strategy.pinned import DModK, Pinned, Static
from heddle_emulator.strategy.te import te
from heddle_emulator.switches import Switches
from heddle_emulator.walk import Forwarding, Measurement, measure, walk

_MOST_QPS = 1024
_SPREAD = r"e-ecmp:([0-9]{1,9})"

Chooser: TypeAlias = Callable[[Fabric, Flows, int], Forwarding]
"""Returns what forwards the packets, given a fabric, flows and a seed."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way of choosing paths for flows; the same seed gives the same paths."""

    choice: Chooser
    qps: int | None = None
    """QPs to divide every flow into; None keeps the flow's own."""

    def __call__(self, fabric: Fabric, flows: Flows, seed: int) -> Measurement:
        """Walk the packets and measure the result."""
        flows = self.sent(flows)
        return measure(fabric, flows, self.choice(fabric, flows, seed))

    def sent(self, flows: Flows) -> Flows:
        """Return the flows as they are sent, with the strategy's number of QPs."""
        return flows if self.qps is None else flows.with_qps(self.qps)


_PLAIN: Mapping[str, Chooser] = {
    "ecmp": lambda fabric, _, seed: Switches(fabric, seed),
    "static": lambda fabric, _, seed: Static(fabric, seed),
    "dmodk": lambda fabric, _, __: DModK(fabric),
    "greedy": lambda fabric, flows, _: Pinned(fabric, flows, greedy_paths(fabric, flows)),
}


def strategy(name: str) -> Strategy:
    """Return a strategy by name: "ecmp", "static", "dmodk", "greedy", or "e-ecmp:32" for 32 QPs.

    Raises:
        InputError: No strategy has that name.
    """
    if name in _PLAIN:
        return Strategy(_PLAIN[name])
    spread = re.fullmatch(_SPREAD, name)
    if spread is None:
        known = f"give {', '.join(_PLAIN)}, or e-ecmp:Q with Q QPs a flow"
        raise refuse("strategy", name, f"is not known; {known}")
    qps = int(spread[1])
    if not 0 < qps <= _MOST_QPS:
        raise refuse("strategy", name, f"has {qps} QPs a flow; give 1 to {_MOST_QPS}")
    return Strategy(_PLAIN["ecmp"], qps)


LIMITS: dict[str, Callable[[Fabric, Flows], Carried]] = {"spray": spray, "ideal": ideal}
TE, GIVEN = "te", "plan:"
DEFAULT = ("ecmp", "e-ecmp:32", "static", "dmodk", "greedy", TE, "spray", "ideal")


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What a strategy made of some flows."""

    carried: Carried
    lower_bound: float = 0.0
    """A proven lower bound on the worst utilisation of any way to carry all flows, or 0."""


def _file_of(name: str) -> str:
    """Return the file of a "plan:FILE" strategy; empty for all others."""
    return name.removeprefix(GIVEN) if name.startswith(GIVEN) else ""


def names_of(text: str) -> tuple[str, ...]:
    """Return the strategies of a list such as "ecmp,te", each once.

    Raises:
        InputError: The list is empty, or a strategy is not known.
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise refuse("strategies", text, f"names none; give some of {', '.join(DEFAULT)}")
    for name in names:
        if name not in LIMITS and name != TE and not _file_of(name):
            try:
                strategy(name)
            except InputError as error:
                if re.fullmatch(_SPREAD, name):
                    raise
                known = ", ".join([*_PLAIN, "e-ecmp:Q", TE, *LIMITS, "plan:FILE"])
                raise refuse("strategies", name, f"is not known; give some of {known}") from error
    return names


def choose(name: str, fabric: Fabric, flows: Flows, seed: int) -> Choice:
    """Carry flows by a strategy that ``names_of`` accepts; ``seed`` sets its hashes.

    Raises:
        HeddleError, ControllerError, TimeoutError: For "te", its controller or a switch did not
            answer.
        InputError: For "plan:FILE", the plan is not one of this fabric and these flows.
    """
    if name in LIMITS:
        return Choice(LIMITS[name](fabric, flows))
    if path := _file_of(name):
        return Choice(whole(flows, _given(path, fabric, flows)))
    if name == TE:
        planned = te(fabric, flows, seed)
        # Plans avoid drained links, other strategies do not: then their bound is no bound for all.
        drained = bool((fabric.carries & ~fabric.plannable).any())
        proven = planned.routed == len(flows) and not drained
        return Choice(whole(flows, planned.paths), planned.lower_bound if proven else 0.0)
    found = strategy(name)
    sent = found.sent(flows)
    return Choice(whole(sent, walk(fabric, sent, found.choice(fabric, sent, seed)).paths()))


def _given(path: str, fabric: Fabric, flows: Flows) -> Paths:
    """Return the paths of a plan.json, without those over a link that does not carry.

    A flow that the plan itself leaves without a path has none here. If the plan does not know a
    flow, has other ends or QPs for it, or has more flows, it was not made for these flows and is
    refused.
    """
    plan = load_plan(Path(path), fabric, flows, no_others=True)
    unlike = [row for row, reason in plan.unrouted.items() if reason in {NEW, ROUTE_CHANGED}]
    if unlike:
        others = f", and so for {len(unlike) - 1:,} more flows" if len(unlike) > 1 else ""
        changed = plan.unrouted[unlike[0]] == ROUTE_CHANGED
        what = "its ends or its QPs are others there" if changed else "it has no route there"
        reason = f"{what}{others}; give the plan of these flows, or the flows of this plan"
        raise refuse(path, f"flow {short(flows.ids[unlike[0]])}", reason)
    owner, dead = plan.paths.owner(), ~fabric.carries[plan.paths.arcs]
    cut = np.bincount(owner[dead], minlength=len(plan.paths)) > 0
    return plan.paths.take(np.flatnonzero(~cut))


def require_all(name: str, carried: Carried) -> None:
    """Refuse paths of a file that lose a flow of a collective, which would then never end.

    Raises:
        InputError: A QP of a flow has no path.
    """
    if not (path := _file_of(name)):
        return
    held = np.bincount(
        carried.paths.flow, weights=carried.paths.qp_count, minlength=len(carried.flows)
    )
    if (lost := np.flatnonzero(held < carried.flows.qps)).size:
        flow = short(carried.flows.ids[int(lost[0])])
        reason = f"has no path over links that are up, so nothing would end; {len(lost):,} flows"
        raise refuse(path, f"flow {flow}", f"{reason} have none: plan them first")
