"""The controller as any user of its public API meets it."""

from heddle_emulator.client.api import Client, ClientError
from heddle_emulator.client.routes import Routed, routed

__all__ = ["Client", "ClientError", "Routed", "routed"]
