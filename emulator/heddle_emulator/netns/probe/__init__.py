"""Probes: packets with numbers, sent and received in the namespaces of hosts."""
