"""The N-1 certificate: what each single link or switch loss does, after local repair alone.

The idea is from "forward fault correction" (FFC, SIGCOMM 2014), which plans so that no fault
congests a link. Here agents move broken paths to their backups before any controller acts. The
certificate reports what the worst loss then does to links and flows, and what other backups could
reach.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from heddle_controller.model.arrays import Floats, Ints, distinct
from heddle_controller.model.plan import AfterLoss, Certificate, Plan
from heddle_controller.solve.bounds.proof import proven_bound
from heddle_controller.solve.losses.fair_shares import SLACK
from heddle_controller.solve.losses.floor import Floors
from heddle_controller.solve.losses.moves import APART, LOSS_KINDS, STRANDED
from heddle_controller.solve.losses.screen import LossScreen, screen_of
from heddle_controller.solve.losses.slowest import SlowFlows
from heddle_controller.solve.losses.standing import Standing
from heddle_controller.solve.losses.suspects import GROWTH, Suspects, left_at_least
from heddle_controller.solve.options import Options

_NAMED = 20
"""Most flows without a usable backup to list by name."""
_FIRST_CELLS = 2
"""For each kind, the fullest arcs after losses in the first batch of the search for bounds."""


def after_losses(plan: Plan) -> tuple[AfterLoss, ...]:
    """Return what the worst single loss does, for links between switches and for switches.

    Empty if the fabric has no link between switches in service. A backup without an entry counts
    as no backup.
    """
    return told_by(LossScreen(plan), thorough=True)


def told_by(screen: LossScreen, *, thorough: bool) -> tuple[AfterLoss, ...]:
    """Return the same as ``after_losses`` for the plan of a screen.

    Unless ``thorough``, lower bounds come from a few losses only.
    """
    losses = screen.standing.losses
    if not losses.served.any():
        return ()
    kinds = list(range(len(LOSS_KINDS)))
    with Suspects(screen) as suspects:
        flows = SlowFlows(suspects)
        flows.take(suspects.look(kinds, kinds))
        slowest = flows.slowest()
        worst = _worst(suspects)
        floor = np.minimum(_floors(suspects, thorough=thorough), worst)
    return tuple(
        AfterLoss(
            LOSS_KINDS[kind],
            float(worst[kind]),
            one.ratio,
            losses.name(one.loss),
            float(floor[kind]),
            _stranded(screen.standing, kind, one.loss),
        )
        for kind, one in enumerate(slowest)
    )


def _stranded(standing: Standing, kind: int, loss: int) -> int:
    """Return how many flows a loss of a kind strands without cutting off any of their paths."""
    slot = np.flatnonzero(standing.routes.weak)
    slot = slot[standing.routes.strands[slot, kind]]
    lost = standing.fates(np.full(len(slot), loss), slot) == STRANDED
    flow = distinct(standing.routes.flow[slot[lost]])
    of, slot = standing.slots(flow)
    apart = standing.fates(np.full(len(slot), loss), slot) == APART
    return len(flow) - len(distinct(of[apart]))


def with_losses(plan: Plan, screen: LossScreen | None = None, *, thorough: bool) -> Certificate:
    """Return the plan's certificate with what single losses do added to it.

    A given ``screen`` is updated to the plan if possible. Unless ``thorough``, lower bounds come
    from a few losses only.
    """
    screen = screen_of(plan, screen)
    routes = screen.standing.routes
    bare = distinct(routes.flow[routes.bare])
    return replace(
        plan.certificate,
        after_loss=told_by(screen, thorough=thorough),
        unprotected=len(bare),
        unprotected_flows=tuple(plan.flows.ids[row] for row in bare[:_NAMED].tolist()),
    )


def prove(
    plan: Plan, screen: LossScreen | None = None, options: Options | None = None
) -> Certificate:
    """Return the full certificate of a plan: the best bound, and what single losses do."""
    proven = replace(plan, certificate=proven_bound(plan, options))
    return with_losses(proven, screen, thorough=True)


def _worst(suspects: Suspects) -> Floats:
    """Return the utilisation of the fullest arc after any loss of each kind, shape (kinds,)."""
    while True:
        worst = np.zeros(len(LOSS_KINDS))
        np.maximum.at(worst, suspects.losses.kind(suspects.loss), suspects.used)
        more = [
            kind
            for kind in range(len(LOSS_KINDS))
            if suspects.fullest(kind) > worst[kind] * (1 + SLACK)
        ]
        if not more:
            return worst
        suspects.look(more, [])


def _floors(suspects: Suspects, *, thorough: bool) -> Floats:
    """Return the utilisation that no choice of backups can beat, for each kind, shape (kinds,).

    The bounds come from the switches at the fullest arcs. If ``thorough``, they also come from
    every loss that makes an arc fuller than the bound so far.
    """
    losses, known = suspects.losses, left_at_least(suspects.screen)
    floors = Floors(suspects.screen, known)

    def over() -> Ints:
        kind = losses.kind(suspects.loss)
        return np.flatnonzero(suspects.used > floors.floor[kind] * (1 + SLACK))

    some = _fullest_of(suspects, over(), _FIRST_CELLS)
    if len(some):
        structure, loss, arc = losses.fabric.structure, suspects.loss[some], suspects.arc[some]
        ends = np.append(structure.tail[arc], structure.head[arc])
        beside = distinct(np.tile(loss, 2) * len(structure.nodes.kind) + ends)
        floors.look_at(distinct(loss), beside)
    done, batch = np.zeros(len(losses.served), dtype=np.bool_), _FIRST_CELLS
    while thorough:
        rest = over()
        rest = rest[~done[suspects.loss[rest]]]
        more = [
            kind
            for kind in range(len(LOSS_KINDS))
            if suspects.fullest(kind) > floors.floor[kind] * (1 + SLACK)
        ]
        if len(rest):
            some = distinct(suspects.loss[_fullest_of(suspects, rest, batch)])
            floors.look_at(some)
            done[some], batch = True, batch * GROWTH
        elif more:
            suspects.look(more, [])
        else:
            break
    return floors.floor


def _fullest_of(suspects: Suspects, rows: Ints, count: int) -> Ints:
    """Return the ``count`` fullest of some pairs that were looked at, for each kind."""
    order = rows[np.argsort(-suspects.used[rows], kind="stable")]
    kind = suspects.losses.kind(suspects.loss[order])
    return np.concatenate([order[kind == one][:count] for one in range(len(LOSS_KINDS))])
