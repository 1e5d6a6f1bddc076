"""How long names may be, wherever they come in: files and calls are held to the same."""

from __future__ import annotations

MAX_NAME = 256
"""Characters of the id of a node, of a host, a zone, a link's key, a demand's job or phase."""
MAX_FLOW = 1024
"""Characters of a flow's id; a job's flows are named by job, phase and two NICs."""
MAX_TITLE = 1024
"""Characters of what a fabric is called for people."""


def too_long(what: str, length: int, most: int) -> str:
    """What to say of a name that is too long."""
    return f"{what} has {length:,} characters; give at most {most:,}"
