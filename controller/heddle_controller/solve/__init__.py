"""Candidate paths, lower bounds, assignment, repair, certificate: the planner.

Pure: plans come from the fabric, the flows and the options alone. Only this room
knows OR-Tools.
"""

from heddle_controller.solve.leftover import plan_anew, repairer_of
from heddle_controller.solve.losses import (
    after_losses,
    better_backups,
    protected,
    prove,
    unprotected_flows,
    without_backups,
)
from heddle_controller.solve.options import Options
from heddle_controller.solve.planner import solve
from heddle_controller.solve.repair.repairer import Repairer

__all__ = [
    "Options",
    "Repairer",
    "after_losses",
    "better_backups",
    "plan_anew",
    "protected",
    "prove",
    "repairer_of",
    "solve",
    "unprotected_flows",
    "without_backups",
]
