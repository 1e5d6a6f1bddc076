"""Drills: play a scenario in a world, measure what happens, and judge its expectations."""
