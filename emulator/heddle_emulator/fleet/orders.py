"""Orders for a controller to fail: files in a folder that ``fault_injection`` reads."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

DIE, STORE_DOWN, SKEW = "die", "store-down", "skew"


class Orders:
    """A folder of orders. A new folder has none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.given = False
        """Whether a fault was ever ordered, even if the order is obeyed or taken back."""
        folder.mkdir(exist_ok=True)

    @property
    def program(self) -> Sequence[str]:
        """The command that runs a controller that obeys the orders."""
        module = "heddle_emulator.fleet.fault_injection"
        return sys.executable, "-m", module, str(self.folder)

    @property
    def deadly(self) -> str:
        """The point at which a controller still has to die; "" for none."""
        path = self.folder / DIE
        return path.read_text() if path.exists() else ""

    def die_at(self, point: str) -> None:
        """Make the controller die when it reaches a point of its work, see ``fault_injection``."""
        self.given = True
        (self.folder / DIE).write_text(point)

    def store_down(self, *, down: bool) -> None:
        """Make the controller's store fail, or work again."""
        self.given = True
        path = self.folder / STORE_DOWN
        path.touch() if down else path.unlink(missing_ok=True)

    def skew(self, seconds: float) -> None:
        """Set the controller's clock ahead, also after a restart, until ``clear``."""
        self.given = True
        (self.folder / SKEW).write_text(f"{seconds}")

    def clear(self) -> None:
        """Remove all orders."""
        for path in self.folder.iterdir():
            path.unlink(missing_ok=True)
