"""What breaks in one trial, as values that can be sent to another process and written to a file.

A trial is known by its number: with the campaign's seed it says all that is drawn, so that
any trial can be had again without those before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from heddle_controller.model.fabric import Fabric
from heddle_emulator.fault import Fault, LinkDown, SwitchDown


class FaultKind(Enum):
    """What an event does; the value is its word in files."""

    LINK = "link"
    """A cable loses its carrier, and stays so until it is mended."""
    FLAP = "flap"
    """A cable loses its carrier and has it back, several times within moments."""
    SWITCH = "switch"
    """A switch loses its power, and its table with it."""


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """Something that breaks."""

    kind: FaultKind
    row: int
    """Of the link or the node."""

    def words(self, fabric: Fabric) -> str:
        """Such as "link l0-s1#0" or "switch s3"."""
        ids = fabric.structure.nodes.ids
        name = ids[self.row] if self.kind is FaultKind.SWITCH else fabric.link_label(self.row)
        return f"{self.kind.value} {name}"

    def fault(self) -> Fault:
        """What breaks it, and mends it. A flap strikes again by itself and so is a link here."""
        return SwitchDown(self.row) if self.kind is FaultKind.SWITCH else LinkDown((self.row,))


@dataclass(frozen=True, slots=True)
class Trial:
    """What breaks together, and is mended again."""

    number: int
    """From 0; with the campaign's seed it draws the events."""
    events: tuple[FaultEvent, ...]
