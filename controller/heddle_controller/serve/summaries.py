"""The newest plan of each fabric as clients see it, without its routes.

How many of its thousands of switches hold a plan takes milliseconds to count, and while it is
rolled out everybody wants to know again and again. So it is counted once each time that the
store or agents have other facts, for all who ask or watch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle.v1 import plan_pb2 as pb
from heddle_controller.reconcile.observations import Observations, with_down
from heddle_controller.reconcile.ports import Store
from heddle_controller.serve.codec import plan as codec
from heddle_controller.serve.history import rollback_to_pb
from heddle_controller.state.records import Committed


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """What was told last of a fabric."""

    committed: Committed
    about: tuple[int, int]
    """Versions of the intent and of what agents see that it was compared with."""
    plan: pb.Plan


class Summaries:
    """One of these for all calls; who is given a message must not change it."""

    def __init__(self, store: Store, observations: Observations) -> None:
        self._store, self._observations = store, observations
        self._known: dict[str, _Known] = {}

    async def of(self, fabric: str) -> pb.Plan | None:
        """The newest plan; None where there is none yet.

        Raises:
            NotFound: there is no such fabric.
        """
        committed = await self._store.committed(fabric)
        if committed is None:
            self._known.pop(fabric, None)
            await self._store.versions(fabric)  # raises where it is the fabric that is missing
            return None
        seen = self._observations.of(fabric)
        about = (await self._store.versions(fabric)).intent, seen.version
        before = self._known.get(fabric)
        if before is not None and _same(before.committed, committed):
            if before.about == about:
                return before.plan
            plan = pb.Plan()
            plan.CopyFrom(before.plan)
        else:
            plan = codec.committed_to_pb(fabric, committed)
        plan.ClearField("rollback")
        wanted = await self._store.rollback(fabric)
        if wanted is not None:
            plan.rollback.CopyFrom(rollback_to_pb(wanted))
        links = with_down((await self._store.get_fabric(fabric)).fabric, seen.down)
        plan.links_current = np.array_equal(links.link_state, committed.plan.fabric.link_state)
        self._known[fabric] = _Known(committed, about, plan)
        return plan


def _same(one: Committed, other: Committed) -> bool:
    return (
        one.plan is other.plan
        and one.program is other.program
        and one.facts == other.facts
        and one.programmed == other.programmed
        and one.kept_for == other.kept_for
    )
