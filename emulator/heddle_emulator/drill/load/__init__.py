"""drill.yaml -> Scenario. What cannot be played is refused here, each fault with its line."""

from heddle_emulator.drill.load.file import WORLDS, load_scenario

__all__ = ["WORLDS", "load_scenario"]
