"""What every call passes on its way in: trace, metrics, auth, limits, errors, parsing.

Trace and metrics come before auth, so that refused calls have an id and are counted.
"""
