"""What a database has to do for a store: apply changes, and tell what there is.

An applier knows no rule of intent. It compares the guards of a change, and makes it whole
or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from heddle_controller.reconcile.ports import AuditStore, Leadership
from heddle_controller.reconcile.replicas import Freshness, Succession
from heddle_controller.state.change import Ask, Change, Outcome
from heddle_controller.state.view import View
from heddle_controller.store.feed import Feed


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is kept of what grows."""

    requests: int = 100_000
    """Answers remembered by request id."""
    audit: int = 100_000
    """Records of the audit trail."""
    writes: int = 10_000
    """Names of what the newest writes changed, for replicas to follow."""


class Applier(AuditStore, Leadership, Succession, Freshness, Protocol):
    """Of one database; every method raises ``Unavailable`` where it cannot be had."""

    name: str
    """Of the database, for people."""
    feed: Feed
    """Told of every change that was made, whoever made it."""

    @property
    def epoch(self) -> int:
        """The newest that is known here."""
        ...

    def check(self) -> None:
        """Nothing while the database can be had. Raises ``Unavailable``."""
        ...

    async def fresh(self) -> None:
        """Views are of now from here on; or as they were known last, where that is what is left."""
        ...

    def view(self, fabric: str) -> View:
        """A fabric as it is known here; one without fields where there is none."""
        ...

    def fabrics(self) -> Iterable[str]:
        """Names of those that are there, in order."""
        ...

    async def apply(self, change: Change, ask: Ask) -> Outcome:
        """Make a change, if its guards hold, its epoch is the newest and its request is new.

        Views have it, and watchers were told, when this returns ``done``.
        """
        ...

    async def remembered(self, request: str) -> bytes | None:
        """What is kept under the id of a request; None if it is new. See ``Ask.remembered``."""
        ...

    async def blob(self, identity: str) -> bytes | None:
        """A large value; None if it is there no more. Raises ``Unusable`` where it is damaged."""
        ...

    async def close(self) -> None:
        """Finish writes under way, and let go of the database."""
        ...
