"""Dropped datagrams, counted by reason, and logged without filling the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum

import structlog

_log = structlog.get_logger()
_REMIND_SECONDS = 60.0


class Refusal(Enum):
    """Why a datagram was dropped, and what a person may check."""

    MALFORMED = "not of this format or version: does something else send to this port?"
    FABRIC = "of another fabric: check the peers"
    KEY = "signed with a key that is not known here: were keys rotated everywhere?"
    FORGED = "its signature is wrong: somebody without the key sends to this port"
    STALE = "meant for an earlier start of this agent, or recorded then; its sender is told"
    REPLAYED = "seen before, or from an earlier start of its sender"
    OWN = "it says that it is from this switch itself: is there a second agent of it?"
    SHUT = "this agent has no key yet: give --peer-keys, or let it reach a controller"


_ORDINARY = frozenset({Refusal.STALE, Refusal.SHUT})
"""These happen whenever an agent restarts."""


class Refusals:
    """The dropped datagrams of one agent, counted by reason."""

    def __init__(self, switch: str, clock: Callable[[], float]) -> None:
        self.counts: Counter[Refusal] = Counter()
        self._clock = clock
        self._told: dict[Refusal, tuple[float, int]] = {}
        self._log = _log.bind(switch=switch)

    def add(self, why: Refusal, address: str) -> None:
        """Count one. The first of its kind is logged at once, later ones together once a minute."""
        self.counts[why] += 1
        now = self._clock()
        since, before = self._told.get(why, (-_REMIND_SECONDS, 0))
        if now - since < _REMIND_SECONDS and before:
            return
        self._told[why] = (now, self.counts[why])
        log = self._log.info if why in _ORDINARY else self._log.warning
        log(
            "peer notices: datagrams dropped",
            reason=why.name.lower(),
            why=why.value,
            last_from=address,
            count=self.counts[why] - before,
        )
