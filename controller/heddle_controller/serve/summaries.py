"""The newest plan of each fabric as clients see it, without its routes.

How many of its thousands of switches hold a plan takes milliseconds to count, and while it is
rolled out everybody wants to know again and again. So it is counted once each time that the
store has other facts, for all who ask or watch.
"""

from __future__ import annotations

from heddle.v1 import plan_pb2 as pb
from heddle_controller.reconcile.ports import Store
from heddle_controller.serve.codec import plan as codec
from heddle_controller.state.records import Committed


class Summaries:
    """One of these for all calls; who is given a message must not change it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, tuple[Committed, pb.Plan]] = {}

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
        before, plan = self._known.get(fabric, (None, None))
        if before is None or plan is None or not _same(before, committed):
            plan = codec.summary_to_pb(fabric, committed)
            self._known[fabric] = committed, plan
        return plan


def _same(one: Committed, other: Committed) -> bool:
    return (
        one.plan is other.plan
        and one.program is other.program
        and one.facts == other.facts
        and one.programmed == other.programmed
        and one.kept_for == other.kept_for
    )
