"""Operations that this switch cannot carry out whatever else it holds."""

from __future__ import annotations

from collections.abc import Iterator

from heddle_agent.fib import ANY_PORT, Capability, Reason
from heddle_agent.table.push import DELETE, OperationFailure, Operations
from heddle_agent.table.state import Table


def impossible(table: Table, operations: Operations) -> list[OperationFailure]:
    """Sets over links that the switch has not, or of matches that its backend has not."""
    failures = [*_without_link(table, operations)]
    if not {Capability.MATCH_PORTS, Capability.MATCH_PAIR} <= table.capabilities:
        seen = {failure.operation for failure in failures}
        failures += (f for f in _unsupported(table, operations) if f.operation not in seen)
    return failures


def _without_link(table: Table, operations: Operations) -> Iterator[OperationFailure]:
    hops = operations.hops
    if hops is None:
        hops = {hop for key in operations.keys for hop in key[:2] if hop is not None}
    if table.local.issuperset([hop[:2] for hop in hops]):
        return
    lost = {
        row: f"no link to {hop.node} key {hop.key}; give the agent that link or mend the fabric"
        for row, key in enumerate(operations.keys)
        for hop in key[:2]
        if hop is not None and hop.port not in table.local
    }
    for operation, row in enumerate(operations.groups):
        if row in lost:
            yield OperationFailure(operation, Reason.UNKNOWN_NEXT_HOP, lost[row])


def _unsupported(table: Table, operations: Operations) -> Iterator[OperationFailure]:
    rows = zip(operations.matches, operations.groups, strict=True)
    for operation, ((_, _, source_port, destination_port), row) in enumerate(rows):
        pair = source_port == destination_port == ANY_PORT
        needed = Capability.MATCH_PAIR if pair else Capability.MATCH_PORTS
        if row != DELETE and needed not in table.capabilities:
            message = f"the backend lacks {needed.name}: {needed.value}"
            yield OperationFailure(operation, Reason.UNSUPPORTED_MATCH, message)
