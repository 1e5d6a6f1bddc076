"""Pairs of NICs that lost their way, and need little of the order in which ways are exchanged.

An order is there for two reasons. One is that a flow stays on a whole way until the next is whole:
but where a link of the old way is down, switches turn its packets aside already. The other is that
no packet comes back to where it was. A detour needs that; an entry on a way that is a shortest one
of the whole fabric brings packets nearer, and so does the underlay, whatever the next switch holds
(see the package). So where there are no detours, all that is to be set and to be taken away for
such a pair goes at once, but for the first entry of the new way: the flow is on it when that is
set, and it is set when the rest is there. A lost link costs two rounds of pushes, not one for each
hop; and where a switch turns out not to answer, the flow is left to the underlay as ever.

Only what is plain is treated so: nothing in doubt, nobody away, nothing that failed, and no QPs
that part, of which one may be on its way still while another has lost its own.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints
from heddle_controller.model.program import ANY_PORT
from heddle_controller.reconcile.rollout.columns import Groups, dead, distinct
from heddle_controller.reconcile.rollout.detours import detours
from heddle_controller.reconcile.rollout.ledger import Ledger


def lost_paths(ledger: Ledger, stuck: Bools) -> Groups:
    """Pairs where everything but the first entry of the new way may go at once.

    ``stuck`` are switches that are away or silent, shape (nodes,).
    """
    held = np.flatnonzero(ledger.present & ledger.routed)
    lost = held[dead(ledger.old.take(held), ledger.fabric)]
    pairs = Groups(distinct(ledger.old_pair[lost]))
    if not len(pairs.keys):
        return pairs
    old, new = held[pairs.index(ledger.old_pair[held])[1]], ledger.rows_of(pairs)
    top = pairs.greatest(ledger.old_pair[old], ledger.old_height[old])
    first = ledger.old_height[old] == pairs.of(top, ledger.old_pair[old], NONE)
    above = ledger.ok[new] & (ledger.height[new] >= pairs.of(top, ledger.pair[new], NONE))
    old = old[(first & ~np.isin(old, lost)) | _old_needs_order(ledger, stuck, old)]
    new = new[above | _new_needs_order(ledger, stuck, new)]
    ordered = np.append(ledger.old_pair[old], ledger.pair[new])
    return Groups(pairs.keys[~pairs.marked(ordered)])


def _old_needs_order(ledger: Ledger, stuck: Bools, rows: Ints) -> Bools:
    switch = ledger.old.switch[rows]
    result: Bools = ledger.detour[rows] | ledger.undeletable[rows]
    result |= stuck[switch] | ledger.knowledge.unknown[switch]
    result |= ledger.old.source_port[rows] != ANY_PORT
    return result


def _new_needs_order(ledger: Ledger, stuck: Bools, rows: Ints) -> Bools:
    switch = ledger.desired.switch[rows]
    result: Bools = ledger.failed[rows] | stuck[switch] | ledger.knowledge.unknown[switch]
    result |= ledger.desired.source_port[rows] != ANY_PORT
    result |= detours(ledger.desired.take(rows), ledger.fabric.structure)
    return result
