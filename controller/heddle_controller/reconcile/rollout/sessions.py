"""What a switch is taken to hold when its agent introduces itself."""

from __future__ import annotations

from collections.abc import Iterable

from heddle_controller.model.program import Entries
from heddle_controller.reconcile.rollout.answers import (
    found_as_held,
    found_empty,
    found_unknown,
    found_whole,
)
from heddle_controller.reconcile.rollout.digest import table_digest
from heddle_controller.reconcile.rollout.ledger import Ledger
from heddle_controller.reconcile.southbound import AgentSession


def introduced(ledger: Ledger, sessions: Iterable[tuple[int, AgentSession]]) -> Ledger:
    """The ledger after agents introduced themselves, each with its switch's node row.

    A digest says more than a generation: an agent that holds the right entries needs
    none, whichever plan it has them from.
    """
    fabric, held = ledger.fabric, ledger.held()
    whole: dict[int, int] = {}
    as_held, empty, unknown = [], [], []
    for switch, session in sessions:

        def is_digest_of(entries: Entries, session: AgentSession = session) -> bool:
            return session.table_digest == table_digest(fabric, entries)

        if is_digest_of(ledger.desired.of_switch(switch)):
            whole[switch] = session.generation
        elif not session.table_digest:
            empty.append(switch)
        elif is_digest_of(held.of_switch(switch)):
            as_held.append(switch)
        else:
            unknown.append(switch)
    ledger = found_whole(ledger, whole) if whole else ledger
    ledger = found_empty(ledger, empty) if empty else ledger
    ledger = found_as_held(ledger, as_held) if as_held else ledger
    return found_unknown(ledger, unknown) if unknown else ledger
