"""How a plan performs right after the loss of any single link or switch, on backups alone."""

from heddle_controller.solve.losses.choose import better_backups, protected, without_backups
from heddle_controller.solve.losses.moves import unprotected_flows
from heddle_controller.solve.losses.screen import LossScreen, screen_of
from heddle_controller.solve.losses.survey import after_losses, prove, with_losses

__all__ = [
    "LossScreen",
    "after_losses",
    "better_backups",
    "protected",
    "prove",
    "screen_of",
    "unprotected_flows",
    "with_losses",
    "without_backups",
]
