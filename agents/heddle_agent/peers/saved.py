"""What an agent must know of its peers when it starts without a controller.

This is the peers and keys that the controller last provided, and the number of this start. The file
contains keys, so only its owner may read it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from heddle_agent.peers.network import parse_address
from heddle_agent.peers.wire import MOST_NUMBER

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class SavedPeers:
    """The content of the file."""

    boot: int
    peers: Mapping[str, str] = field(default_factory=dict)
    keys: Sequence[bytes] = ()


def first_boot() -> int:
    """Return a boot number for an agent that remembers none; later starts have greater ones.

    If the clock was set back, peers that remember this switch correct the number (``notices``).
    """
    return time.time_ns() // 1000


class PeerFile:
    """A small JSON file for one switch."""

    def __init__(self, path: Path, fabric: str, switch: str) -> None:
        self._path = path
        self._owner = {"fabric": fabric, "switch": switch}

    def load(self) -> SavedPeers:
        """Return what earlier runs saved and the number of this start; ValueError if damaged."""
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            memory = SavedPeers(first_boot())
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"state file {self._path} cannot be read: {error}") from error
        else:
            memory = self._parse(text)
        self.keep(memory)
        return memory

    def keep(self, memory: SavedPeers) -> None:
        """Write the file. If the disk refuses it, log an error and continue."""
        values = {
            **self._owner,
            "boot": memory.boot,
            "peers": dict(memory.peers),
            "keys": [key.hex() for key in memory.keys],
        }
        fresh = self._path.with_name(f"{self._path.name}.new")
        try:
            fresh.unlink(missing_ok=True)
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
                json.dump(values, out)
            fresh.replace(self._path)
        except OSError as error:
            _log.error(
                "peer notices: peers and keys not written: an agent restart could not use them",
                path=str(self._path),
                why=error.strerror,
            )

    def _parse(self, text: str) -> SavedPeers:
        try:
            values = json.loads(text)
            if {key: values[key] for key in self._owner} != self._owner:
                raise ValueError("of another switch")  # noqa: TRY301 - one cure for all
            boot, peers = values["boot"], values["peers"]
            if type(boot) is not int or not 0 <= boot < MOST_NUMBER:
                raise ValueError("boot is not a number")  # noqa: TRY301
            for address in peers.values():
                parse_address(address)
            keys = [bytes.fromhex(key) for key in values["keys"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"state file {self._path} is damaged ({error}): remove it, and the agent asks its"
                " controller again"
            ) from error
        return SavedPeers(boot + 1, peers, keys)
