"""Intended, programmed and dirty entries of one switch, behind the epoch fence."""

from heddle_agent.table.digest import table_digest
from heddle_agent.table.forwarding import Forwarding, Held
from heddle_agent.table.push import (
    DELETE,
    Fence,
    GroupKey,
    Mode,
    OperationFailure,
    Operations,
    Push,
    Receipt,
    Status,
)

__all__ = [
    "DELETE",
    "Fence",
    "Forwarding",
    "GroupKey",
    "Held",
    "Mode",
    "OperationFailure",
    "Operations",
    "Push",
    "Receipt",
    "Status",
    "table_digest",
]
