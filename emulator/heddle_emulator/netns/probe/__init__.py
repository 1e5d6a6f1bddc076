"""Probes: numbered packets that are sent and received in the namespaces of hosts."""
