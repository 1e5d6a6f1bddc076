"""The shared keys of peer notices: one signs, several are accepted.

Keys can rotate at switches in any order. A new key is distributed as an accepted one before anybody
signs with it. A key that is no longer distributed is still accepted for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from heddle_agent.peers.wire import key_id

LEAST_BYTES = 16
MOST_KEYS = 16
_GRACE_SECONDS = 300.0


class KeyRing:
    """The keys of one agent. Without keys it neither sends nor accepts notices."""

    def __init__(
        self, keys: Sequence[bytes] = (), *, clock: Callable[[], float], grace: float = 0.0
    ) -> None:
        """Take a monotonic ``clock`` in seconds, and ``grace`` in seconds, where 0 means 300."""
        self._clock = clock
        self._grace = grace or _GRACE_SECONDS
        self._signing: tuple[bytes, bytes] | None = None
        self._current: dict[bytes, bytes] = {}
        self._retired: dict[bytes, tuple[bytes, float]] = {}
        self.keys: tuple[bytes, ...] = ()
        self.replace(keys)

    def replace(self, keys: Sequence[bytes]) -> None:
        """Use these keys, the first one to sign; ValueError if they are too short or too many.

        Earlier keys that are missing now are accepted for the time of grace. An empty ``keys``
        changes nothing, so that a controller without keys does not stop notices.
        """
        if not keys:
            return
        if any(len(key) < LEAST_BYTES for key in keys):
            raise ValueError(f"a peer key needs {LEAST_BYTES} bytes or more")
        if len(keys) > MOST_KEYS:
            raise ValueError(f"{len(keys)} peer keys: give {MOST_KEYS} at most")
        fresh = {key_id(key): key for key in keys}
        until = self._clock() + self._grace
        for named, key in self._current.items():
            if named not in fresh:
                self._retired[named] = (key, until)
        now = self._clock()
        self._retired = {
            named: (key, end)
            for named, (key, end) in self._retired.items()
            if named not in fresh and end > now
        }
        self._current = fresh
        self._signing = (key_id(keys[0]), keys[0])
        self.keys = tuple(keys)

    @property
    def signing(self) -> tuple[bytes, bytes] | None:
        """Id and key to sign with; None if there is no key."""
        return self._signing

    def find(self, named: bytes) -> bytes | None:
        """Return the key with this id if it is accepted now, else None."""
        key = self._current.get(named)
        if key is None and named in self._retired:
            retired, until = self._retired[named]
            key = retired if self._clock() < until else None
        return key


def read_keys(path: Path) -> list[bytes]:
    """Return the keys in a file, one per line in hexadecimal; the first one signs.

    Empty lines and lines that begin with # are ignored. Raises ValueError that names the file and
    the line, never the key.
    """
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise ValueError(f"key file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ValueError(f"key file {path} is not text: give keys in hexadecimal") from None
    keys = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            key = bytes.fromhex(text)
        except ValueError:
            raise ValueError(f"key file {path} line {number} is not hexadecimal") from None
        if len(key) < LEAST_BYTES:
            raise ValueError(
                f"key file {path} line {number}: {len(key)} bytes, give {LEAST_BYTES} or more;"
                " openssl rand -hex 32 makes one"
            )
        keys.append(key)
    if not keys:
        raise ValueError(f"key file {path} holds no key; openssl rand -hex 32 makes one")
    if len(keys) > MOST_KEYS:
        raise ValueError(f"key file {path} holds {len(keys)} keys: give {MOST_KEYS} at most")
    return keys
