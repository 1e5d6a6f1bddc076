"""What is known to be held, after a switch has answered and when the target changes.

An agent tells what its switch holds when it introduces itself, or when it is asked. It sends a
digest, by which agent and controller know whether they mean the same entries. The rule for the
digest is in agent.proto, at SessionParameters.table_digest. The digest is of text, because it has
to be the same in any language and for any fabric file that names the same things.

The next target begins with what is known from the ledger of the one before. When a fabric is
replaced, its nodes and links get other rows, while switches keep their entries. Entries are carried
over by ids and keys. Where an entry refers to something that is gone, it can no longer be named,
and its switch has to be swept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from heddle_controller.model.arrays import NONE, Ints, distinct
from heddle_controller.model.edits import Edit
from heddle_controller.model.fabric import Fabric, Structure
from heddle_controller.model.program import Entries, known_edit, no_entries
from heddle_controller.reconcile.ports import (
    UNKNOWN_DIGEST,
    AgentSession,
    FailureReason,
    OperationFailure,
)
from heddle_controller.reconcile.rollout.inventory import found_holding, in_order
from heddle_controller.reconcile.rollout.ledger import Knowledge, Ledger, begin, nothing_known
from heddle_controller.reconcile.rollout.paths import (
    Groups,
    appended,
    joined_entries,
    pair_codes,
    rows_between,
)
from heddle_controller.reconcile.rollout.steps import Step
from heddle_controller.state.records import Committed

Answer = tuple[Step, Sequence[OperationFailure]]
"""A step, and the operations of it that failed."""


def acknowledged(ledger: Ledger, answers: Sequence[Answer]) -> Ledger:
    """Return the ledger after the FIB acks of its own steps, at most one of each switch."""
    ledger = ledger.settled()
    made, unmade = _split(answers, lambda step: step.sets, lambda _: 0)
    guarded_now, unwarned = _split(
        answers, lambda step: step.adds_risk, lambda step: len(step.sets)
    )
    broken, unbroken = _split(answers, lambda step: step.deletes, lambda step: step.set_count)
    gone, kept = _split(
        answers, lambda step: step.withdraws, lambda step: step.set_count + len(step.deletes)
    )
    ok, failed, height = ledger.ok.copy(), ledger.failed.copy(), ledger.height.copy()
    present, undeletable = ledger.present.copy(), ledger.undeletable.copy()
    maybe, guarded = ledger.maybe.copy(), ledger.guarded.copy()
    ok[made], ok[gone], maybe[gone] = True, False, False
    height[made] = ledger.depth[made]
    failed[unmade] = failed[kept] = True
    present[broken], undeletable[unbroken] = False, True
    guarded[guarded_now], undeletable[unwarned] = True, True
    replaced = np.zeros(len(ok) + 1, dtype=np.bool_)  # the last is for rows without a partner
    replaced[made] = True
    present[replaced[ledger.partner]] = False
    after = replace(
        ledger,
        ok=ok,
        maybe=maybe,
        failed=failed,
        height=height,
        present=present,
        undeletable=undeletable,
        guarded=guarded,
    )
    return _roomier(_known_better(after, answers), answers)


def _split(
    answers: Sequence[Answer], rows_of: Callable[[Step], Ints], offset: Callable[[Step], int]
) -> tuple[Ints, Ints]:
    """Return the rows of one kind of operation that succeeded, and those that failed.

    ``offset`` gives the number of the first operation of that kind in the push of a step.
    """
    rows = [np.empty(0, dtype=np.int64), *(rows_of(step) for step, _ in answers)]
    first = np.cumsum([0, *(len(part) for part in rows)])[1:]
    bad = np.zeros(int(first[-1]), dtype=np.bool_)
    for (step, failures), start, part in zip(answers, first, rows[1:], strict=False):
        places = (failure.operation - offset(step) for failure in failures)
        bad[[start + place for place in places if 0 <= place < len(part)]] = True
    together = np.concatenate(rows)
    return together[~bad], together[bad]


def _known_better(ledger: Ledger, answers: Sequence[Answer]) -> Ledger:
    """Return the ledger with reasons of failures, and what answers tell of whole switches."""
    reasons = {
        int(step.sets[failure.operation]): failure
        for step, failures in answers
        for failure in failures
        if failure.operation < len(step.sets)
    }
    knowledge = ledger.knowledge.noted("unsynced", _switches_of(s for s, _ in answers), value=False)
    swept = _switches_of(step for step, _ in answers if step.sweep)
    knowledge = knowledge.noted("unknown", swept, value=False)
    maybe = ledger.maybe & ~np.isin(ledger.desired.switch, swept)
    whole = _switches_of(step for step, failures in answers if step.completes and not failures)
    knowledge = knowledge.noted("generation", whole, value=ledger.generation)
    reasons = {**ledger.reasons, **reasons}
    return replace(ledger, maybe=maybe, knowledge=knowledge, reasons=reasons)


def _roomier(ledger: Ledger, answers: Sequence[Answer]) -> Ledger:
    """Return the ledger with tables noted as full, and retries where room was made since."""
    short = _switches_of(
        step
        for step, failures in answers
        if any(failure.reason == FailureReason.TABLE_FULL for failure in failures)
    )
    knowledge = ledger.knowledge.noted("full", short, value=True)
    freed = _switches_of(
        step for step, _ in answers if step.sweep or len(step.deletes) or len(step.withdraws)
    )
    freed = freed[knowledge.full[freed] & ~np.isin(freed, short)]
    if not len(freed):
        return replace(ledger, knowledge=knowledge)
    failed = ledger.failed.copy()
    for row, failure in ledger.reasons.items():
        if failure.reason == FailureReason.TABLE_FULL and ledger.desired.switch[row] in freed:
            failed[row] = False
    return replace(ledger, failed=failed, knowledge=knowledge.noted("full", freed, value=False))


def _switches_of(steps: Iterable[Step]) -> Ints:
    return np.array([step.switch for step in steps], dtype=np.int64)


def found_whole(ledger: Ledger, generations: Mapping[int, int]) -> Ledger:
    """Return the ledger after switches showed that they hold all wanted entries and no others.

    ``generations`` gives for each switch (node row) the generation that it holds completely.
    """
    switches = np.array(list(generations), dtype=np.int64)
    after = _forgotten(ledger, switches, held=True)
    knowledge = after.knowledge.noted("unsynced", switches, value=False)
    knowledge = knowledge.noted("unknown", switches, value=False)
    generation = knowledge.generation.copy()
    generation[switches] = list(generations.values())
    return replace(after, knowledge=replace(knowledge, generation=generation))


def found_empty(ledger: Ledger, switches: Sequence[int]) -> Ledger:
    """Return the ledger after switches showed that they hold nothing."""
    rows = np.array(switches, dtype=np.int64)
    after = _forgotten(ledger, rows, held=False)
    knowledge = after.knowledge.doubted(rows).noted("unknown", rows, value=False)
    return replace(after, knowledge=knowledge)


def found_as_held(ledger: Ledger, switches: Sequence[int]) -> Ledger:
    """Return the ledger after switches showed that they hold exactly what the ledger expects."""
    rows = np.array(switches, dtype=np.int64)
    knowledge = ledger.knowledge.noted("unsynced", rows, value=False)
    sure = ledger.maybe & np.isin(ledger.desired.switch, rows)
    replaced = np.append(sure, False)[ledger.partner]
    alike = ledger.present & ledger.alike & ~replaced & np.isin(ledger.old.switch, rows)
    ok, height = ledger.ok | sure, _standing_height(ledger)
    ok[ledger.partner[alike]] = True
    return replace(
        ledger,
        ok=ok,
        maybe=ledger.maybe & ~sure,
        height=height,
        present=ledger.present & ~(alike | replaced),
        knowledge=knowledge.noted("unknown", rows, value=False),
    )


def found_unknown(ledger: Ledger, switches: Sequence[int]) -> Ledger:
    """Return the ledger after it turned out that what switches hold is not known.

    No entry counts as set there. Old entries may still be there, so they have to go in
    their turn as before. To delete one that is gone does no harm.
    """
    rows = np.array(switches, dtype=np.int64)
    here = np.isin(ledger.desired.switch, rows)
    ledger = ledger.settled()
    return replace(
        ledger,
        ok=ledger.ok & ~here,
        maybe=ledger.maybe | (ledger.ok & here),
        failed=ledger.failed & ~here,
        guarded=ledger.guarded & ~np.isin(ledger.old.switch, rows),
        knowledge=ledger.knowledge.doubted(rows),
    )


def unanswered(ledger: Ledger, steps: Sequence[Step]) -> Ledger:
    """Return the ledger after steps that may or may not have been done.

    Their switches are unknown from then on.
    """
    if not steps:
        return ledger
    ledger = ledger.widened().settled()
    maybe, height = ledger.maybe.copy(), ledger.height.copy()
    for step in steps:
        maybe[step.sets] = True
        height[step.sets] = ledger.depth[step.sets]
    after = found_unknown(
        replace(ledger, maybe=maybe, height=height), [step.switch for step in steps]
    )
    return replace(after, guarded=ledger.guarded)  # such a step removed no acknowledged guard


def _standing_height(ledger: Ledger) -> Ints:
    """Return the heights of wanted entries if those in doubt turned out to be held.

    An entry that was held all along keeps its old height, because what is held further
    on need not be its new path yet.
    """
    here = np.flatnonzero(ledger.present & ledger.alike)
    rows = ledger.partner[here]
    unmade = ~(ledger.ok | ledger.maybe)
    height = np.where(unmade, ledger.depth, ledger.height)
    height[rows] = np.maximum(height[rows], ledger.old_height[here])
    return height


def _forgotten(ledger: Ledger, switches: Ints, *, held: bool) -> Ledger:
    """Return the ledger with all wanted entries of some switches held or none, and no others."""
    of_desired = np.isin(ledger.desired.switch, switches)
    ledger = ledger.settled()
    height = np.where(of_desired, _standing_height(ledger), ledger.height)
    return replace(
        ledger,
        ok=np.where(of_desired, held, ledger.ok),
        maybe=ledger.maybe & ~of_desired,
        height=height,
        failed=ledger.failed & ~of_desired,
        present=ledger.present & ~np.isin(ledger.old.switch, switches),
    )


@dataclass(frozen=True, slots=True, eq=False)
class HeldState:
    """A session, with what its switch holds now."""

    session: AgentSession
    """The session; its generation and digest describe the current table."""
    entries: Entries | None = None
    """Every entry of the table; None if the agent did not list them."""
    asked: Structure | None = None
    """The structure in whose rows entries were asked for; None if they were not."""


def introduced(ledger: Ledger, told: Iterable[HeldState]) -> Ledger:
    """Return the ledger after agents told what they hold; switches not in the fabric are ignored.

    A digest says more than a generation: an agent that holds the right entries needs
    no others, whichever plan they come from. Where the digest is not one that is expected,
    the entries count, if they were listed.
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
    """Return the sessions of unknown switches that have not been asked for every entry yet.

    Args:
        ledger: The ledger after ``introduced``.
        told: What the agents told.
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


def table_digest(fabric: Fabric, entries: Entries) -> bytes:
    """Return the digest of the entries of one switch; empty if there are none."""
    if not len(entries):
        return b""
    ids = fabric.structure.nodes.ids
    ways = _ways(fabric, entries)
    lines = [
        f"{source}\t{destination}\t{source_port}\t{destination_port}\t{way}\n"
        for source, destination, source_port, destination_port, way in sorted(
            zip(
                map(ids.__getitem__, entries.source.tolist()),
                map(ids.__getitem__, entries.destination.tolist()),
                entries.source_port.tolist(),
                entries.destination_port.tolist(),
                ways,
                strict=True,
            )
        )
    ]
    return hashlib.sha256("".join(lines).encode()).digest()


def _ways(fabric: Fabric, entries: Entries) -> Iterator[str]:
    """Yield the part of each line that says where an entry sends packets; most are alike."""
    first, links = entries.risk_first.tolist(), entries.risk_links.tolist()
    hops = cache(lambda arc: _hop(fabric, arc))
    labels = cache(lambda link: _link(fabric, link))
    own = cache(lambda rows: "".join(sorted(f"\t{labels(row)}" for row in rows)))
    arcs = zip(entries.primary.tolist(), entries.backup.tolist(), strict=True)
    for (primary, backup), start, end in zip(arcs, first, first[1:], strict=False):
        spare = "\t" if backup == NONE else hops(backup)
        at_risk = own(tuple(link for link in links[start:end] if link >= 0))
        beyond = own(tuple(~link for link in links[start:end] if link < 0))
        yield f"{hops(primary)}\t{spare}{at_risk}" + (f"\t{beyond}" if beyond else "")


def _hop(fabric: Fabric, arc: int) -> str:
    structure = fabric.structure
    return f"{structure.nodes.ids[int(structure.head[arc])]}\t{structure.links.key[arc >> 1]}"


def _link(fabric: Fabric, row: int) -> str:
    links, ids = fabric.structure.links, fabric.structure.nodes.ids
    low, high = sorted((ids[int(links.a[row])], ids[int(links.b[row])]))
    return f"{low} {high} {links.key[row]}"


_FEW = 1024
"""The most entries that are compared on the event loop instead of in a thread."""


def first_ledger(committed: Committed, before: Sequence[Committed] = ()) -> Ledger:
    """Return the ledger of a leader that has just begun.

    Switches that acknowledged the newest plan are taken to hold it. Any other switch may hold
    what it acknowledged last and everything that plans since then wanted, because rollouts that
    did not finish deleted nothing. So these plans are gone through one after another. Whatever
    may be left of them is deleted in its turn, unless agents say what they really hold.

    Args:
        committed: The newest plan.
        before: Older plans, ascending, as far back as the store has them and switches may hold
            entries of them.
    """
    first, *others = *before, committed
    nodes = first.plan.fabric.node_count
    wanted = first.program.entries
    ledger = begin(first.plan, first.generation, wanted, no_entries(), nothing_known(nodes))
    ledger = _noted(ledger, committed)
    for one in others:
        ledger = next_ledger(_overtaken(ledger, committed, one.generation), one, (), left=True)
        ledger = _noted(ledger, committed)
    every = np.arange(ledger.fabric.node_count)
    return replace(ledger, knowledge=ledger.knowledge.noted("unsynced", every, value=True))


def may_hold(committed: Committed, generation: int) -> bool:
    """Return whether any switch may still hold entries of this older generation."""
    return len(_behind(committed, committed.plan.fabric.structure, generation + 1)) > 0


def _noted(ledger: Ledger, newest: Committed) -> Ledger:
    """Return the ledger with the switches that acknowledged its generation known to hold it."""
    structure = ledger.fabric.structure
    behind = set(_behind(newest, structure, ledger.generation))
    done = set(_switches(structure)) - behind
    return found_whole(ledger, dict.fromkeys(sorted(done), ledger.generation)) if done else ledger


def _overtaken(ledger: Ledger, newest: Committed, generation: int) -> Ledger:
    """Return the ledger with the switches doubted that may hold only a part of ``generation``."""
    return found_unknown(ledger, _behind(newest, ledger.fabric.structure, generation))


def _behind(newest: Committed, structure: Structure, generation: int) -> list[int]:
    """Return the switches (node rows) not known to have reached a generation."""
    ids, held = structure.nodes.ids, newest.programmed
    return [row for row in _switches(structure) if held.of(ids[row]) < generation]


def _switches(structure: Structure) -> list[int]:
    rows: list[int] = structure.programmed.tolist()
    return rows


def next_ledger(
    ledger: Ledger, committed: Committed, under_way: Sequence[Step], *, left: bool = False
) -> Ledger:
    """Return the ledger of a newer plan, while steps of the current one may be under way.

    Such a step may have been done or not. So what it sets and what it deletes may both be held
    and is deleted in its turn. Its switch is unknown, so that wanted entries are sent there again.
    At other unknown switches, an earlier leader may have set what was wanted. These entries are
    deleted in their turn too, and not left to the sweep at the end, when the rest of their path
    is gone already.

    Args:
        ledger: The ledger of the current plan.
        committed: The newer plan.
        under_way: Steps of ``ledger`` that were sent and not answered.
        left: Whether earlier leaders set everything that may be held, as when a leader begins.
    """
    ledger = unanswered(ledger, under_way)
    unknown = ledger.knowledge.unknown[ledger.desired.switch]
    ledger = replace(ledger, maybe=ledger.maybe | (unknown & ~ledger.ok))
    structure = committed.plan.fabric.structure
    wanted, edit = committed.program.entries, None
    if structure is ledger.fabric.structure and not left:
        edit = known_edit(ledger.target, wanted)
    if edit is not None:
        return _as_before(ledger, _of_some(ledger, committed, edit))
    ledger = ledger.widened()
    held, known_detours, knowledge = ledger.held(left=left), ledger.detours(), ledger.knowledge
    if structure is not ledger.fabric.structure:
        before = ledger.fabric.structure
        known_detours, _ = translated(known_detours, knowledge, before, structure)
        held, knowledge = translated(held, knowledge, before, structure)
    after = begin(
        committed.plan, committed.generation, wanted, held, knowledge, known_detours=known_detours
    )
    return _as_before(ledger, after)


def is_small_step(ledger: Ledger, committed: Committed, under_way: Sequence[Step]) -> bool:
    """Return whether the ledger of a newer plan is made so quickly that no thread is needed."""
    edit = known_edit(ledger.target, committed.program.entries)
    if edit is None or under_way:
        return False
    return len(ledger.desired) + len(edit.gone) + len(edit.came) <= _FEW


def _of_some(ledger: Ledger, committed: Committed, edit: Edit) -> Ledger:
    """Return a ledger of a newer plan that covers only pairs that differ or were not done."""
    plan, wanted = committed.plan, committed.program.entries
    nodes = plan.fabric.node_count
    changed = appended([ledger.target.take(edit.gone), wanted.take(edit.came)])
    codes = pair_codes(changed.source, changed.destination, nodes)
    pairs = Groups(distinct(np.append(codes, ledger.undone())))
    held = ledger.held()
    held = held.take(rows_between(held, pairs, nodes))
    return begin(
        plan,
        committed.generation,
        wanted.take(rows_between(wanted, pairs, nodes)),
        joined_entries([held, ledger.unspoken(pairs.keys)]),
        ledger.knowledge,
        known_detours=ledger.detours(),
        target=wanted,
    )


def _as_before(before: Ledger, after: Ledger) -> Ledger:
    """Return ``after`` with the new generation noted for switches that held all of the last plan.

    That is done where nothing differs for the switch: it has acknowledged already what the new
    plan wants. A lost link concerns a few of some thousand switches.
    """
    knowledge = after.knowledge
    whole = (knowledge.generation == before.generation) & ~knowledge.unknown & ~knowledge.unsynced
    whole[after.desired.switch[~after.ok]] = False
    whole[after.old.switch[after.present]] = False
    return replace(after, knowledge=knowledge.noted("generation", whole, after.generation))


_LOST = np.iinfo(np.int64).min
"""Marks a risk link that is gone. It is neither a link row nor the complement of one."""


def translated(
    held: Entries, knowledge: Knowledge, old: Structure, new: Structure
) -> tuple[Entries, Knowledge]:
    """Return the entries and knowledge in rows of ``new``, without switches that are gone.

    A switch with an entry that cannot be expressed in these rows is unknown and unsynced.
    """
    node = _rows(old.nodes.ids, new.nodes.ids)
    arc = _rows(_arc_names(old), _arc_names(new))
    here = node[held.switch] != NONE
    named = here & (node[held.source] != NONE) & (node[held.destination] != NONE)
    named &= (arc[held.primary] != NONE) & ((held.backup == NONE) | (_of(arc, held.backup) != NONE))
    owner = np.repeat(np.arange(len(held)), np.diff(held.risk_first))
    risks = _links(arc, held.risk_links)
    named[owner[risks == _LOST]] = False
    kept = held.take(np.flatnonzero(named))
    carried = replace(
        kept,
        switch=node[kept.switch],
        source=node[kept.source],
        destination=node[kept.destination],
        primary=arc[kept.primary],
        backup=_of(arc, kept.backup),
        risk_links=_links(arc, kept.risk_links),
    )
    nameless = node[held.switch[here & ~named]]
    return joined_entries([carried]), _carried(knowledge, node, nameless, len(new.nodes.ids))


def _carried(knowledge: Knowledge, node: Ints, nameless: Ints, nodes: int) -> Knowledge:
    kept = np.flatnonzero(node != NONE)

    there = node[kept]
    after = nothing_known(nodes)
    for name in ("unknown", "unsynced", "generation", "full"):
        column = getattr(after, name).copy()
        column[there] = getattr(knowledge, name)[kept]
        after = replace(after, **{name: column})
    after = after.noted("unknown", nameless, value=True)
    return after.noted("unsynced", nameless, value=True)


def _of(arc: Ints, column: Ints) -> Ints:
    return np.where(column == NONE, NONE, arc[column])


def _links(arc: Ints, links: Ints) -> Ints:
    """Return risk links in rows of the other structure; ``_LOST`` for those that are gone."""
    spare = links < 0
    rows = arc[2 * np.where(spare, ~links, links)] >> 1
    return np.where(rows < 0, _LOST, np.where(spare, ~rows, rows))


def _rows(old: Sequence[object], new: Sequence[object]) -> Ints:
    """Return the row in ``new`` of each name in ``old``, or ``NONE``."""
    rows = {name: row for row, name in enumerate(new)}
    return np.array([rows.get(name, NONE) for name in old], dtype=np.int64)


def _arc_names(structure: Structure) -> list[tuple[str, str, str]]:
    ids, links = structure.nodes.ids, structure.links
    names = []
    for a, b, key in zip(links.a.tolist(), links.b.tolist(), links.key, strict=True):
        names += [(ids[a], ids[b], str(key)), (ids[b], ids[a], str(key))]
    return names
