"""What a rollout is to bring about, and how patient it is."""

from __future__ import annotations

from dataclasses import dataclass

from heddle_controller.state.records import Committed, JobRecord


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """All in seconds."""

    patience: float = 5.0
    """A switch that is away, or has not answered for so long, holds up only its own flows."""
    linger: float = 0.02
    """Answers that come together are taken together: how long the first waits for the rest."""
    retry_first: float = 1.0
    """Until an entry that failed is tried again; twice as long each time."""
    retry_last: float = 60.0
    """The longest until it is tried again."""


@dataclass(frozen=True, slots=True)
class Account:
    """The jobs that there are, and what is to be told of them besides their progress."""

    generation: int = 0
    """Of the newest plan; 0 for none."""
    jobs: tuple[JobRecord, ...] = ()
    """Those that the plan holds."""
    others: tuple[JobRecord, ...] = ()
    """Those that it does not hold."""
    refused: tuple[tuple[str, str], ...] = ()
    """Jobs that no plan can hold, by name, and why."""
    trouble: str = ""
    """Why there is no newer plan although there should be; empty where all is well."""


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A committed plan, and the jobs to tell of."""

    committed: Committed
    account: Account = Account()
    since: float | None = None
    """When the intent changed that led to this plan, Unix seconds; None for long ago."""
