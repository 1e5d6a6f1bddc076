"""Frozen value types that all other packages share. Bulk data is kept in numpy arrays."""
