"""What can break in a fabric, and how to break and mend it."""

from heddle_emulator.fault.cables import Cables
from heddle_emulator.fault.faults import Fault, LinkDown, SwitchDown
from heddle_emulator.fault.random import draw_link

__all__ = ["Cables", "Fault", "LinkDown", "SwitchDown", "draw_link"]
