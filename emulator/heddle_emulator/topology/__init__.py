"""Fabric builders: Clos, three-tier, rail-optimised and the published clusters."""
