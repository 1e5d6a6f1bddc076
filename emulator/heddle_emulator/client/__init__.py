"""The public API, used as a scheduler and an operator would."""

from heddle_emulator.client.api import Client, Routed, routed
from heddle_emulator.client.watch import ControllerView, Watcher

__all__ = ["Client", "ControllerView", "Routed", "Watcher", "routed"]
