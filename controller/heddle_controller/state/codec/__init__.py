"""Converts values to bytes and back, in the same way for each kind of store. Never by pickle."""
