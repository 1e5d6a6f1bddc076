"""What every call passes on its way in: telemetry, authentication, limits, errors, parsing.

Telemetry comes first, so that refused calls have an id and are counted.
"""
