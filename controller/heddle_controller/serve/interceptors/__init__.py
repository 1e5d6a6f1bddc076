"""The layers around every call, from outside: telemetry, authentication, limits, errors, parsing.

Telemetry comes first, so that refused calls have an id and are counted.
"""
