"""gRPC metadata of an answer that a controller gave from memory because its store was away."""

STALE = "heddle-stale"
"""``true`` if the answer is the last that this replica knew, and may be outdated."""
AGE = "heddle-stale-seconds"
"""Sent together with ``STALE``: seconds since the store was last heard."""
