"""Leaders die half-way through plans, again and again, and no packet loops.

If agents report every entry, a new leader knows what is left and in which order packets meet it.
Older agents report a digest. Then the leader knows only the plans and facts in the store. Facts lag
behind, and unfinished plans leave entries of older ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.reconcile.rollout.answers import (
    HeldState,
    first_ledger,
    introduced,
    may_hold,
    to_ask,
)
from heddle_controller.state.records import Committed, Programmed
from tests.property.test_reconcile_rollout import Rollout
from tests.support.depth import examples


class Leading(Rollout):
    """A rollout with the store's plans and facts, of which a new leader makes its ledger."""

    tells = False
    """Whether agents report every entry."""

    def __init__(self, seed: int) -> None:
        self.plans: list[Committed] = []
        self.facts = Programmed()
        super().__init__(seed)

    def committed(self) -> Committed:
        """A random plan, which the store keeps."""
        self.plans.append(super().committed())
        return self.plans[-1]

    def note(self) -> None:
        """Record in the store which switches hold the plan."""
        for switch in self.switches:
            if self.ledger.knowledge.generation[switch] == self.generation:
                held = Programmed(0, {self.ids[switch]: self.generation})
                self.facts = self.facts.joined(held)

    def lead_anew(self) -> None:
        """Replace the leader. Each push that it sent last is either done or lost."""
        for sent in self.under_way.values():
            if self.random.random() < 0.5:
                self.take(sent, [])
        self.under_way = {}
        newest = replace(self.plans[-1], programmed=self.facts)
        before = [one for one in self.plans[:-1] if may_hold(newest, one.generation)]
        self.ledger = first_ledger(newest, before)
        self.reconnect(*self.switches)

    def reconnect(self, *switches: int) -> None:
        """Bring switches back. If ``tells``, those with an unclear digest report every entry."""
        super().reconnect(*switches)
        if self.tells:
            doubtful = to_ask(self.ledger, [HeldState(self.session(one)) for one in switches])
            listed = [
                HeldState(
                    session,
                    self.network.tables[session.switch].listed(self.fabric, session.switch),
                    self.fabric.structure,
                )
                for session in doubtful
            ]
            self.ledger = introduced(self.ledger, listed)
            assert not self.ledger.knowledge.unknown[list(switches)].any()


class Telling(Leading):
    """A rollout whose agents report every entry when asked."""

    tells = True


def lead_again_and_again(rollout: Leading) -> None:
    """Change leaders and plans at random; no packet is lost, and the last plan is reached."""
    often: list[Callable[[], None]] = [rollout.answer] * 4
    events = [*often, rollout.note, rollout.supersede, rollout.lead_anew]
    for _ in range(40):
        rollout.send()
        event = rollout.random.choice(events)
        if rollout.under_way or event not in often:
            event()
    rollout.finish()


@pytest.mark.parametrize("seed", [10, 68, 75, 103, 105, 120, 171, 325, 408, 529, 573, 688, 711])
def test_leaders_that_die_half_way(seed: int) -> None:
    """No packet loops if agents report only a digest.

    At these seeds a leader does not know what is left of plans before the last, or in which order
    packets meet it.
    """
    lead_again_and_again(Leading(seed))


@pytest.mark.parametrize("seed", [194, 233, 356, 653, 1266, 1642, 1959, 2534, 2812, 2942])
def test_leaders_that_are_told_what_is_held(seed: int) -> None:
    """No packet loops if agents report every entry.

    At these seeds no order by plans could remove what is left without a loop. At three of them an
    order by entries must suit the packets of every port at once.
    """
    lead_again_and_again(Telling(seed))


@settings(max_examples=examples(20))
@given(st.integers(0, 2**32))
def test_any_leaders_that_are_told_what_is_held(seed: int) -> None:
    """No packet loops at any seed if agents report every entry."""
    lead_again_and_again(Telling(seed))
