"""Drills: a scenario, what comes of it in a world, and whether what was expected held."""
