"""What a plan is worth right after any single link or switch is lost."""

from heddle_controller.solve.losses.choose import better_backups, protected, without_backups
from heddle_controller.solve.losses.entered import unprotected_flows
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
