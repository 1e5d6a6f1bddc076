"""The fence on disk, so that a restarted agent refuses what the previous one would have refused.

The file is replaced in one step before the push that raised the fence is answered. It is synced to
disk only when the epoch grew. A power loss may lose a generation, but then the table that it
belonged to is lost as well.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import structlog

from heddle_agent.table.push import NO_FENCE, Fence

_log = structlog.get_logger()

_LIMIT = 1 << 64  # the protocol's numbers are below this


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value < _LIMIT:
        raise ValueError(f"{value!r} is not a whole number from 0 to 2^64 - 1")
    return value


class FenceFile:
    """A small JSON file with the fence of one switch."""

    def __init__(self, path: Path, fabric: str, switch: str) -> None:
        self._path = path
        self._owner = {"fabric": fabric, "switch": switch}
        self._epoch = 0  # the epoch on disk

    def load(self) -> Fence:
        """Return the fence of earlier runs; ValueError if the file is damaged or not accessible."""
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            fence = NO_FENCE
        except OSError as error:
            raise ValueError(f"state file {self._path} cannot be read: {error}") from error
        else:
            fence = self._parse(text)
        try:
            self._write(fence)  # to fail at the start, not at the first push
        except OSError as error:
            raise ValueError(
                f"state file {self._path} cannot be written: {error.strerror};"
                " give a path in a folder that this user may write to"
            ) from error
        return fence

    def remember(self, fence: Fence) -> None:
        """Store a newer fence. If the disk refuses it, log an error and continue."""
        try:
            self._write(fence)
        except OSError as error:
            _log.error(
                "state file not written: an agent restart could let an older controller in",
                path=str(self._path),
                why=error.strerror,
            )

    def _parse(self, text: bytes) -> Fence:
        try:
            values = json.loads(text.decode())
            owner = {key: values[key] for key in self._owner}
            fence = Fence(_whole(values["highest_epoch"]), _whole(values["generation"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"state file {self._path} is damaged ({error}): remove it, and the agent accepts"
                " any epoch once"
            ) from error
        if owner != self._owner:
            raise ValueError(
                f"state file {self._path} is of {owner['switch']} in {owner['fabric']}, not of"
                f" {self._owner['switch']} in {self._owner['fabric']}: give each agent its own"
            )
        return fence

    def _write(self, fence: Fence) -> None:
        values = {**self._owner, "highest_epoch": fence.epoch, "generation": fence.generation}
        fresh = self._path.with_name(f"{self._path.name}.new")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump(values, file)
            if fence.epoch > self._epoch:
                file.flush()
                os.fsync(file.fileno())
        fresh.replace(self._path)
        self._epoch = fence.epoch
