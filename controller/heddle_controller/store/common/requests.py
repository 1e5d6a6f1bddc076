"""How a request is told from another under the same id."""

from __future__ import annotations

import hashlib


def fingerprint(*parts: str | bytes) -> str:
    """A digest of what a request asks for; parts do not run into each other."""
    digest = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()
