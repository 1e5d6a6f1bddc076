"""What shall go wrong in a controller: files in a folder that ``fault_injection`` reads."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

DIE, STORE_DOWN, SKEW = "die", "store-down", "skew"


class Orders:
    """A folder of orders, empty at first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    @property
    def program(self) -> Sequence[str]:
        """What runs a controller that obeys them."""
        module = "heddle_emulator.fleet.fault_injection"
        return sys.executable, "-m", module, str(self.folder)

    @property
    def none(self) -> bool:
        """Whether nothing shall go wrong."""
        return not any(self.folder.iterdir())

    @property
    def deadly(self) -> str:
        """The point at which somebody is to die who has not come to it; "" for none."""
        path = self.folder / DIE
        return path.read_text() if path.exists() else ""

    def die_at(self, point: str) -> None:
        """Die as soon as it comes to a point of its work: see ``fault_injection``."""
        (self.folder / DIE).write_text(point)

    def store_down(self, *, down: bool) -> None:
        """Have its store fail, or serve again."""
        path = self.folder / STORE_DOWN
        path.touch() if down else path.unlink(missing_ok=True)

    def skew(self, seconds: float) -> None:
        """Put its clock ahead; it stays so in those that are started after it."""
        (self.folder / SKEW).write_text(f"{seconds}")

    def clear(self) -> None:
        """Nothing shall go wrong any more."""
        for path in self.folder.iterdir():
            path.unlink(missing_ok=True)
