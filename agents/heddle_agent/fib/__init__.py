"""Forwarding back ends behind one Protocol."""
