"""Leaders die half way through a plan, again and again: no packet circles, whatever they left.

What one of them set is known to those after it from plans and facts in the store alone. Facts lag
behind, and plans that did not come about leave what older ones had set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from heddle_controller.reconcile.records import Committed, Programmed
from heddle_controller.reconcile.rollout.aims import first_ledger, may_hold
from tests.property.test_reconcile_rollout import Rollout


class Leading(Rollout):
    """With the store's plans and facts, of which a new leader makes its ledger."""

    def __init__(self, seed: int) -> None:
        self.plans: list[Committed] = []
        self.facts: dict[str, Programmed] = {}
        super().__init__(seed)

    def committed(self) -> Committed:
        """A random plan, which the store keeps."""
        self.plans.append(super().committed())
        return self.plans[-1]

    def note(self) -> None:
        """The store is told which switches hold the plan."""
        for switch in self.switches:
            if self.ledger.knowledge.generation[switch] == self.generation:
                self.facts[self.ids[switch]] = Programmed(1, self.generation, 0.0)

    def lead_anew(self) -> None:
        """The leader is gone; what it sent last is done or not. Another one begins."""
        for sent in self.under_way.values():
            if self.random.random() < 0.5:
                self.take(sent, [])
        self.under_way = {}
        newest = replace(self.plans[-1], programmed=dict(self.facts))
        before = [one for one in self.plans[:-1] if may_hold(newest, one.generation)]
        self.ledger = first_ledger(newest, before)
        self.reconnect(*self.switches)


@pytest.mark.parametrize("seed", [10, 68, 75, 103, 105, 120, 171, 325, 408, 529, 573, 688, 711])
def test_leaders_that_die_half_way(seed: int) -> None:
    """No loop and no black hole at any operation, and in the end all is as wanted.

    Seeds at which a leader did not know what was left of plans before the last, or in which
    order packets meet it.
    """
    rollout = Leading(seed)
    often: list[Callable[[], None]] = [rollout.answer] * 4
    events = [*often, rollout.note, rollout.supersede, rollout.lead_anew]
    for _ in range(40):
        rollout.send()
        event = rollout.random.choice(events)
        if rollout.under_way or event not in often:
            event()
    rollout.finish()
