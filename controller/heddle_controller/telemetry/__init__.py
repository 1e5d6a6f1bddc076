"""Metrics, logs and traces of the running controller."""
