"""The intended, programmed and dirty entries of one switch, behind the epoch fence."""

from heddle_agent.table.digest import table_digest
from heddle_agent.table.fence_file import FenceFile
from heddle_agent.table.forwarding import Forwarding, Held, keep_in_memory
from heddle_agent.table.links import LinkObservation
from heddle_agent.table.push import (
    DELETE,
    NO_FENCE,
    Fence,
    GroupKey,
    Mode,
    OperationFailure,
    Operations,
    Push,
    PushTargets,
    Receipt,
    Status,
)
from heddle_agent.table.receive import outdated
from heddle_agent.table.worker import TableWorker

__all__ = [
    "DELETE",
    "NO_FENCE",
    "Fence",
    "FenceFile",
    "Forwarding",
    "GroupKey",
    "Held",
    "LinkObservation",
    "Mode",
    "OperationFailure",
    "Operations",
    "Push",
    "PushTargets",
    "Receipt",
    "Status",
    "TableWorker",
    "keep_in_memory",
    "outdated",
    "table_digest",
]
