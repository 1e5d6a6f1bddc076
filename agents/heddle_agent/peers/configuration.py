"""Where peer notices get peers and keys: from files, a controller, or the last run.

Files win over the controller, because an operator chose them. They are read again when they change.
A file that cannot be used changes nothing, and the log says why.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog

from heddle_agent.peers.keys import KeyRing, read_keys
from heddle_agent.peers.network import Attachment, parse_address
from heddle_agent.peers.notices import PeerNotices
from heddle_agent.peers.saved import PeerFile, SavedPeers, first_boot

_log = structlog.get_logger()


def read_peers(path: Path) -> dict[str, str]:
    """Return addresses by switch from a JSON object; ValueError names the file and the record."""
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"peers file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"peers file {path} is not JSON: {error}") from error
    if not isinstance(told, dict):
        raise ValueError(f"peers file {path}: give an object, switch to address")  # noqa: TRY004
    for switch, address in told.items():
        try:
            parse_address(str(address))
        except ValueError as error:
            raise ValueError(f"peers file {path}: {switch}: {error}") from None
    return told


class Watched:
    """A file that is to be read again when it has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None

    def changed(self) -> bool:
        """Whether the file has changed since the last call; False while it is missing."""
        try:
            found = self.path.stat()
        except OSError:
            return False
        seen = (found.st_mtime_ns, found.st_ino, found.st_size)
        before, self._seen = self._seen, seen
        return seen != before


class PeerConfiguration:
    """What peer notices need: a network, peers, keys and the number of this start."""

    def __init__(
        self,
        network: Attachment,
        *,
        key_file: Path | None = None,
        peers_file: Path | None = None,
        peer_file: PeerFile | None = None,
        keys: Sequence[bytes] = (),
        peers: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Load what is given; ValueError if a file cannot be used.

        ``key_file`` or ``keys``, and ``peers_file`` or ``peers``, take precedence over the
        controller. ``peer_file`` remembers for the next start what the controller provided.
        """
        self.network = network
        self._keys_given = bool(key_file or keys)
        self._peers_given = peers_file is not None or peers is not None
        self._key_file = Watched(key_file) if key_file else None
        self._peers_file = Watched(peers_file) if peers_file else None
        self._peer_file = peer_file
        memory = peer_file.load() if peer_file else SavedPeers(first_boot())
        if self._key_file and self._key_file.changed():
            keys = read_keys(self._key_file.path)
        elif self._key_file:
            read_keys(self._key_file.path)  # raises an error that says why
        if self._peers_file:
            self._peers_file.changed()
            peers = read_peers(self._peers_file.path)
        self.keys = KeyRing(keys or memory.keys, clock=clock)
        self.peers = dict(memory.peers if peers is None else peers)
        self.boot = memory.boot

    @property
    def asks(self) -> bool:
        """Whether peers or keys are wanted from the controller."""
        return not (self._keys_given and self._peers_given)

    def update(self, notices: PeerNotices, peers: Mapping[str, str], keys: Sequence[bytes]) -> None:
        """Use the controller's peers and keys, except for those that the operator gave.

        An empty address means that the controller does not know it, so the known address is kept.
        """
        if not self._keys_given:
            self._take_keys(keys)
        if not self._peers_given:
            named = {name: at or self.peers.get(name, "") for name, at in peers.items()}
            self.peers = {name: at for name, at in named.items() if at}
            notices.set_peers(self.peers)
        if self._peer_file is not None:
            own = () if self._keys_given else self.keys.keys
            self._peer_file.keep(SavedPeers(notices.boot, self.peers, own))

    def poll(self, notices: PeerNotices) -> None:
        """Read files that have changed."""
        try:
            if self._key_file and self._key_file.changed():
                self._take_keys(read_keys(self._key_file.path))
            if self._peers_file and self._peers_file.changed():
                self.peers = read_peers(self._peers_file.path)
                notices.set_peers(self.peers)
        except ValueError as error:
            _log.error("peer notices: file refused", why=str(error))

    def _take_keys(self, keys: Sequence[bytes]) -> None:
        if tuple(keys) == self.keys.keys:
            return
        try:
            self.keys.replace(keys)
        except ValueError as error:
            _log.error("peer notices: keys refused", why=str(error))
        else:
            _log.info("peer notices: new keys", count=len(keys))
