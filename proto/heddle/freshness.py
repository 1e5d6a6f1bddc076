"""How an answer says that it is of the past: metadata of a controller without its store."""

STALE = "heddle-stale"
"""``true`` where the answer is from what this replica knew last."""
AGE = "heddle-stale-seconds"
"""Beside it: since when the store has not been heard."""
