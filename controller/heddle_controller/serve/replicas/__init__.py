"""Agents of other replicas: how the leader reaches them, by post through the store.

The protocol is in relay.proto. ``exchange`` is the whole of it for the gateway,
``branch`` is what every replica does for the leader, ``mirrors`` what the leader does
to have sessions of others as if they were its own, ``post`` the sending and reading.
"""
