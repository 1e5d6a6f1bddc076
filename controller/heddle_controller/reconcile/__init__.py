"""The level-triggered loop that plans what is wanted and rolls it out, and the ports it needs."""
