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


FORM = "4"
"""Of what is stored: another one is refused."""

WRITE = _script("write")
NEWS = _script("news")
POSITION = _script("position")
LEAD = _script("lead")
RENEW = _script("renew")
RESIGN = _script("resign")
LIFT = _script("lift")


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


class Keys:
    """The names of everything in one store."""

    def __init__(self, name: str) -> None:
        tag = f"{{{name}}}"
        self.sequence = f"{tag}:sequence"
        """Number of the newest write."""
        self.log = f"{tag}:log"
        """Stream of what the newest writes changed: names only."""
        self.leader = f"{tag}:leader"
        """Hash of the newest epoch and its holder."""
        self.lease = f"{tag}:lease"
        """The epoch that leads, for as long as it does."""
        self.requests = f"{tag}:requests"
        """Hash of answers by request id."""
        self.request_order = f"{tag}:requests:order"
        """List of request ids, oldest first."""
        self.references = f"{tag}:references"
        """Hash of how often each blob is pointed at."""
        self.fabrics = f"{tag}:fabrics"
        """Set of the fabrics' names."""
        self.audit = f"{tag}:audit"
        """Stream of the audit trail."""
        self.audit_marks = f"{tag}:audit:marks"
        """Hash of its head and its anchor."""
        self.secrets = f"{tag}:secrets"
        """Hash of what all replicas share and nobody else may know."""
        self.meta = f"{tag}:meta"
        """Hash that says whose store this is, and in which form."""
        self.fabric_prefix = f"{tag}:fabric:"
        """Before a fabric's name: the hash of all that is known of it."""
        self._blob_prefix = f"{tag}:blob:"

    def blob(self, identity: str) -> str:
        """Hash of the pieces of a large value."""
        return self._blob_prefix + identity
