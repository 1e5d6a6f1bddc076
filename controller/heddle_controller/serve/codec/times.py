"""Times of messages. Commands that show no more than a time load nothing else."""

from __future__ import annotations

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from heddle_controller.model.errors import refuse

_FIRST, _LAST, _NANOS = -62_135_596_800, 253_402_300_798, 10**9
"""First and last second that a Timestamp may hold (the last less 1, because floats round), and
nanoseconds per second."""


def time_to_pb(seconds: float) -> Timestamp:
    """Return a time in Unix seconds as a Timestamp, rounded to a microsecond."""
    whole = Timestamp()
    whole.FromMicroseconds(round(seconds * 1e6))
    return whole


def time_from_pb(time: Timestamp, field: str = "time") -> float:
    """Return a Timestamp in Unix seconds; 0 if it is unset.

    Raises:
        InputError: it is not in the years 1 to 9999, so no Timestamp could hold it.
    """
    if not (_FIRST <= time.seconds <= _LAST and 0 <= time.nanos < _NANOS):
        reason = f"{time.seconds} s and {time.nanos} ns are not a time within the years 1 to 9999"
        raise refuse("request", field, reason)
    return time.seconds + time.nanos / _NANOS


def time_text(time: Timestamp) -> str:
    """Return a time for people, in UTC, to the second; empty if it is unset."""
    seconds = time_from_pb(time)
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if seconds else ""
