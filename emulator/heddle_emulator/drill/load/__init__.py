"""Load drill files as scenarios. Scenarios with faults are refused, each fault with its line."""

from heddle_emulator.drill.load.file import WORLDS, load_scenario

__all__ = ["WORLDS", "load_scenario"]
