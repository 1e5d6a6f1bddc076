"""The shared keys of peer notices: one signs, several are believed.

Keys rotate in any order among switches: a new key is handed out, as one that is believed, before
anybody signs with it, and one that is handed out no longer is believed for a while yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from heddle_agent.peers.wire import key_id

LEAST_BYTES = 16
MOST_KEYS = 16
_GRACE_SECONDS = 300.0


class KeyRing:
    """The keys of one agent; without any it neither sends nor believes notices."""

    def __init__(
        self, keys: Sequence[bytes] = (), *, clock: Callable[[], float], grace: float = 0.0
    ) -> None:
        """``clock`` is monotonic, in seconds; ``grace`` as in seconds, by default 300."""
        self._clock = clock
        self._grace = grace or _GRACE_SECONDS
        self._signing: tuple[bytes, bytes] | None = None
        self._current: dict[bytes, bytes] = {}
        self._retired: dict[bytes, tuple[bytes, float]] = {}
        self.keys: tuple[bytes, ...] = ()
        self.replace(keys)

    def replace(self, keys: Sequence[bytes]) -> None:
        """Take these keys, the first to sign with; ValueError if one is too short to be safe.

        Keys that are not among them any more are believed for the time of grace. No keys at all
        changes nothing: whoever has none to give must not stop them.
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
        """Id and key to sign with; None while there is none."""
        return self._signing

    def find(self, named: bytes) -> bytes | None:
        """The key of this id, if it is believed now."""
        key = self._current.get(named)
        if key is None and named in self._retired:
            retired, until = self._retired[named]
            key = retired if self._clock() < until else None
        return key


def read_keys(path: Path) -> list[bytes]:
    """The keys in a file, one a line in hexadecimal, the first to sign with.

    Empty lines and lines that begin with # do not count. ValueError that names the file and the
    line, never the key.
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
