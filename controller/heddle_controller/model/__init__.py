"""Frozen value types every other room speaks in; bulk data as numpy arrays, a row each."""
