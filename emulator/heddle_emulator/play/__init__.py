"""Plays scripts in the fluid world, over the paths that a strategy gives."""
