"""Who holds which host, or which GPUs of it: one field a host, with all who hold some of it.

Whoever takes or leaves a part of a host guards the field of the whole host, so that of two who
want the same GPUs one is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson

from heddle_controller.model.job import Gpus
from heddle_controller.state.change import Guard
from heddle_controller.state.view import View


def parse_holders(content: bytes) -> Mapping[str, Gpus]:
    """Names, and what each holds; no GPUs are the whole host."""
    return {name: tuple(gpus) for name, gpus in orjson.loads(content).items()}


class Holds:
    """The holders of hosts, of one kind, as they are and as they are to be."""

    def __init__(self, view: View, kind: str) -> None:
        """``kind`` of fields: those of jobs, or those of reservations."""
        self._view, self._kind = view, kind
        self._looked: dict[str, Mapping[str, Gpus]] = {}
        self._wanted: dict[str, dict[str, Gpus]] = {}

    def of(self, host: str) -> Mapping[str, Gpus]:
        """The jobs and reservations that hold some of a host."""
        if host in self._wanted:
            return self._wanted[host]
        if host not in self._looked:
            self._looked[host] = self._view.get(self._kind, host, parse_holders) or {}
        return self._looked[host]

    def put(self, host: str, holder: str, gpus: Gpus | None) -> None:
        """A holder has this of a host from now on; None: nothing any more."""
        known = self.of(host)
        if gpus is None and holder not in known:
            return
        wanted = {name: part for name, part in known.items() if name != holder}
        if gpus is not None:
            wanted[holder] = gpus
        self._wanted[host] = wanted

    def guards(self) -> tuple[Guard, ...]:
        """Guards that all that was looked at is still so."""
        hosts = dict.fromkeys([*self._looked, *self._wanted])
        return tuple(self._view.guard(f"{self._kind}/{host}") for host in hosts)

    def sets(self) -> dict[str, bytes | None]:
        """The fields that change."""
        fields = {
            f"{self._kind}/{host}": orjson.dumps(wanted, option=orjson.OPT_SORT_KEYS)
            if wanted
            else None
            for host, wanted in self._wanted.items()
        }
        return {field: value for field, value in fields.items() if self._view.raw(field) != value}
