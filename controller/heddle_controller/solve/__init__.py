"""The planner: candidate paths, lower bounds, assignment, repair and certificate.

Planning is pure: a plan follows from the fabric, the flows and the options alone. No other package
uses OR-Tools.
"""

from heddle_controller.solve.leftover import improvements, plan_anew, repairer_of
from heddle_controller.solve.losses import (
    LossScreen,
    after_losses,
    better_backups,
    protected,
    prove,
    screen_of,
    unprotected_flows,
    with_losses,
    without_backups,
)
from heddle_controller.solve.options import Options
from heddle_controller.solve.planner import solve
from heddle_controller.solve.repair.repairer import Repairer

__all__ = [
    "LossScreen",
    "Options",
    "Repairer",
    "after_losses",
    "better_backups",
    "improvements",
    "plan_anew",
    "protected",
    "prove",
    "repairer_of",
    "screen_of",
    "solve",
    "unprotected_flows",
    "with_losses",
    "without_backups",
]
