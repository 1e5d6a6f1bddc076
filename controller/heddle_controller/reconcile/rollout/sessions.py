"""What a switch is taken to hold when its agent introduces itself, or answers what it holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.fabric import Structure
from heddle_controller.model.program import Entries
from heddle_controller.reconcile.rollout.answers import (
    found_as_held,
    found_empty,
    found_unknown,
    found_whole,
)
from heddle_controller.reconcile.rollout.columns import appended
from heddle_controller.reconcile.rollout.digest import table_digest
from heddle_controller.reconcile.rollout.inventory import found_holding, in_order
from heddle_controller.reconcile.rollout.ledger import Ledger
from heddle_controller.reconcile.southbound import UNKNOWN_DIGEST, AgentSession


@dataclass(frozen=True, slots=True, eq=False)
class HeldState:
    """A session, with what its switch holds by now."""

    session: AgentSession
    entries: Entries | None = None
    """Every entry, if the agent told them."""
    asked: Structure | None = None
    """The rows in which they were asked for; None if they were not."""


def introduced(ledger: Ledger, told: Iterable[HeldState]) -> Ledger:
    """The ledger after agents introduced themselves, those of switches that the fabric has.

    A digest says more than a generation: an agent that holds the right entries needs
    none, whichever plan it has them from. Where it says nothing, the entries do.
    """
    ledger = ledger.widened()
    structure, held = ledger.fabric.structure, ledger.held()
    whole: dict[int, int] = {}
    as_held, empty, listed, unknown = [], [], [], []
    tables = []
    for one in told:
        session, entries = one.session, one.entries
        switch = structure.index.get(session.switch)
        if switch is None:
            continue

        def is_digest_of(entries: Entries, session: AgentSession = session) -> bool:
            return session.table_digest == table_digest(ledger.fabric, entries)

        if is_digest_of(ledger.target.of_switch(switch)):
            whole[switch] = session.generation
        elif not session.table_digest:
            empty.append(switch)
        elif is_digest_of(held.of_switch(switch)):
            as_held.append(switch)
        elif entries is not None and one.asked is structure and is_digest_of(entries):
            listed.append(switch)
            tables.append(entries)
        else:
            unknown.append(switch)
    ledger = found_whole(ledger, whole) if whole else ledger
    ledger = found_empty(ledger, empty) if empty else ledger
    ledger = found_as_held(ledger, as_held) if as_held else ledger
    if listed:
        ledger = found_holding(ledger, appended(tables), np.array(listed, dtype=np.int64))
    ledger = found_unknown(ledger, unknown) if unknown else ledger
    known = [*whole, *empty, *as_held, *listed]
    return in_order(ledger, np.array(known, dtype=np.int64)) if known else ledger


def to_ask(ledger: Ledger, told: Sequence[HeldState]) -> list[AgentSession]:
    """Sessions of switches whose digest said nothing, to be asked for every entry.

    Args:
        ledger: After they introduced themselves.
        told: What they said.
    """
    structure, unknown = ledger.fabric.structure, ledger.knowledge.unknown
    return [
        one.session
        for one in told
        if one.session.switch in structure.index
        and unknown[structure.index[one.session.switch]]
        and one.session.table_digest != UNKNOWN_DIGEST
        and one.asked is not structure
    ]
