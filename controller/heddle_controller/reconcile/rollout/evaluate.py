"""Everything evaluated once: what was heard is taken in, what is due found, pushes are made.

Pure, so that the driver can have it done in a thread where a whole plan is rolled out to thousands
of switches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heddle_controller.reconcile.rollout.answers import Answer, acknowledged, unanswered
from heddle_controller.reconcile.rollout.ledger import Ledger
from heddle_controller.reconcile.rollout.progress import JobProgress, job_progress
from heddle_controller.reconcile.rollout.sessions import HeldState, introduced, to_ask
from heddle_controller.reconcile.rollout.steps import (
    Step,
    Switches,
    agenda,
    operations_of,
    steps_of,
)
from heddle_controller.reconcile.southbound import AgentSession, Push

QUICK = 256
"""Entries to make or to take away."""


@dataclass(frozen=True, slots=True)
class Inbox:
    """What has come since the last evaluation; steps are of the ledger that it is taken into."""

    answers: Sequence[Answer] = ()
    lost: Sequence[Step] = ()
    """Their sessions ended first."""
    told: Sequence[HeldState] = ()
    """What switches answered to questions."""
    orphans: Sequence[Step] = ()
    """Sent to sessions that others have replaced."""
    met: Sequence[HeldState] = ()
    """New sessions whose introduction is believed as it is."""


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """What there is to see, and to do."""

    ledger: Ledger
    """With all that was heard, and with failures forgotten where that was asked for."""
    failing: bool
    """Whether anything had failed, before any of it was forgotten."""
    pushes: Sequence[tuple[Step, Push]]
    progress: Mapping[str, JobProgress]
    pending: bool
    """Whether any pair does not have its new way yet."""
    doubtful: Sequence[AgentSession]
    """To be asked for every entry."""
    behind: int
    """Switches with entries that have not acknowledged the whole plan."""


def is_quick(ledger: Ledger, heard: Inbox) -> bool:
    """Whether to evaluate takes no longer than a thread's help would, as after a loss."""
    if heard.told or heard.met:  # whole tables are compared then
        return False
    return int(np.count_nonzero(~ledger.ok)) + len(ledger.old) <= QUICK


def taken_in(ledger: Ledger, heard: Inbox) -> Ledger:
    """The ledger after what was heard."""
    ledger = acknowledged(ledger, heard.answers) if heard.answers else ledger
    ledger = unanswered(ledger, heard.lost)
    ledger = introduced(ledger, heard.told) if heard.told else ledger
    ledger = unanswered(ledger, heard.orphans)
    return introduced(ledger, heard.met) if heard.met else ledger


def in_doubt(ledger: Ledger, heard: Inbox) -> list[AgentSession]:
    """Sessions that said nothing of use, to be asked for more; after what was heard."""
    return to_ask(ledger, [*heard.told, *heard.met])


def evaluate(
    ledger: Ledger,
    heard: Inbox,
    switches: Switches,
    why_stuck: Callable[[], Mapping[int, str]],
    *,
    epoch: int,
    retry: bool,
) -> Evaluation:
    """Evaluation at everything once.

    Args:
        ledger: As the last evaluation left it.
        heard: What has come since.
        switches: What can be expected of each.
        why_stuck: In words, by switch; asked for where a pair is held up.
        epoch: To send under.
        retry: Whether to try again what has failed.
    """
    ledger = taken_in(ledger, heard)
    failing = bool(ledger.failed.any() or ledger.undeletable.any())
    if failing and retry:
        ledger = ledger.retried()
    doubtful = in_doubt(ledger, heard)
    switches = switches.asking([ledger.fabric.structure.index[one.switch] for one in doubtful])
    due = agenda(ledger, switches.stuck)
    steps = steps_of(ledger, due, switches)
    why = why_stuck() if len(due.blocked) else {}
    wanted = np.zeros(ledger.fabric.node_count, dtype=np.bool_)
    wanted[ledger.target.switch] = True
    behind = np.count_nonzero(ledger.knowledge.generation[wanted] != ledger.generation)
    return Evaluation(
        ledger=ledger,
        failing=failing,
        pushes=pushes_of(ledger, steps, epoch),
        progress=job_progress(ledger, due, switches.stuck, why),
        pending=len(due.pending) > 0,
        doubtful=doubtful,
        behind=int(behind),
    )


def pushes_of(ledger: Ledger, steps: Sequence[Step], epoch: int) -> list[tuple[Step, Push]]:
    """What to send for each step."""
    return [
        (
            step,
            Push(
                mode=step.mode,
                epoch=epoch,
                generation=ledger.generation,
                fabric=ledger.fabric,
                sets=sets,
                deletes=deletes,
                sweep_stale=step.sweep,
                completes_generation=step.completes,
            ),
        )
        for step, (sets, deletes) in zip(steps, operations_of(ledger, steps), strict=True)
    ]
