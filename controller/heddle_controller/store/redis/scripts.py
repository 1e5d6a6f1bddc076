"""The scripts that run in Redis, and the keys that they are given.

Leadership covers the whole store and every fenced write compares the epoch in the step
that writes, so all keys have one hash tag: in a cluster they share a slot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import orjson
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import NoScriptError


@dataclass(frozen=True, slots=True)
class Script:
    """One script, and the name under which a server remembers it."""

    text: str
    digest: str

    async def call(self, client: Redis, keys: Sequence[str], args: Sequence[Any]) -> Any:  # noqa: ANN401 - whatever the script answers
        """Run it; by name, and whole where the server does not know it."""
        try:
            return await client.evalsha(self.digest, len(keys), *keys, *args)
        except NoScriptError:
            return await client.eval(self.text, len(keys), *keys, *args)

    def queue(self, pipeline: Pipeline, keys: Sequence[str], args: Sequence[Any]) -> None:
        """Add a call to a pipeline, whose sender looks for ``NoScriptError``."""
        pipeline.evalsha(self.digest, len(keys), *keys, *args)


def _script(name: str) -> Script:
    text = (Path(__file__).parent / "lua" / f"{name}.lua").read_text(encoding="ascii")
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


FORM = "2"
"""Of what is stored: another one is refused."""

WRITE = _script("write")
NEWS = _script("news")
POSITION = _script("position")
LEAD = _script("lead")
RENEW = _script("renew")
RESIGN = _script("resign")
LIFT = _script("lift")
RAISE = _script("raise")


class Note(NamedTuple):
    """What the log tells of a write."""

    token: str
    """Of the write."""
    writer: str
    """Who made it."""
    kind: str
    """What it moves; see ``Change``. Or ``LEASE``."""
    fabric: str = ""
    fields: tuple[str, ...] = ()
    """Those that changed; "*": so many that all are read again."""


LEASE = "l"
"""A lease was taken or given up."""


def note_of(entry: Mapping[bytes, bytes]) -> Note:
    """What an entry of the log says."""
    token, writer, kind, *rest = orjson.loads(entry[b"n"])
    return Note(token, writer, kind, rest[0] if rest else "", tuple(rest[1:]))


@dataclass(frozen=True, slots=True)
class Keys:
    """The names of everything in one store."""

    name: str

    def _key(self, *parts: str) -> str:
        return ":".join((f"{{{self.name}}}", *parts))

    @property
    def sequence(self) -> str:
        """Number of the newest write."""
        return self._key("sequence")

    @property
    def log(self) -> str:
        """Stream of what the newest writes changed: names only."""
        return self._key("log")

    @property
    def leader(self) -> str:
        """Hash of the newest epoch and its holder."""
        return self._key("leader")

    @property
    def lease(self) -> str:
        """The epoch that leads, for as long as it does."""
        return self._key("lease")

    @property
    def requests(self) -> str:
        """Hash of answers by request id."""
        return self._key("requests")

    @property
    def request_order(self) -> str:
        """List of request ids, oldest first."""
        return self._key("requests", "order")

    @property
    def references(self) -> str:
        """Hash of how often each blob is pointed at."""
        return self._key("references")

    @property
    def fabrics(self) -> str:
        """Set of the fabrics' names."""
        return self._key("fabrics")

    @property
    def audit(self) -> str:
        """Stream of the audit trail."""
        return self._key("audit")

    @property
    def audit_marks(self) -> str:
        """Hash of its head and its anchor."""
        return self._key("audit", "marks")

    @property
    def secrets(self) -> str:
        """Hash of what all replicas share and nobody else may know."""
        return self._key("secrets")

    @property
    def meta(self) -> str:
        """Hash that says whose store this is, and in which form."""
        return self._key("meta")

    @property
    def fabric_prefix(self) -> str:
        """Before a fabric's name: the hash of all that is known of it."""
        return self._key("fabric", "")

    def blob(self, identity: str) -> str:
        """Hash of the pieces of a large value."""
        return self._key("blob", identity)
