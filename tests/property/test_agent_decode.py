"""Whatever arrives, decoding gives columns that fit each other, or a complaint in words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heddle.v1 import agent_pb2 as pb
from heddle_agent.session.decode import MalformedPushError, decode_push
from heddle_agent.table import DELETE

small = st.integers(0, 3)
column = st.lists(small, max_size=3)


@given(
    kinds=column,
    columns=st.lists(column, min_size=8, max_size=8),
    ends=st.integers(0, 3),
    hops=st.integers(0, 3),
    risks=st.lists(column, max_size=2),
    mode=small,
)
def test_garbage_is_refused_in_words(
    *,
    kinds: list[int],
    columns: list[list[int]],
    ends: int,
    hops: int,
    risks: list[list[int]],
    mode: int,
) -> None:
    """No index error, no half-decoded push."""
    names = (
        *("sources", "destinations", "source_ports", "destination_ports"),
        *("primaries", "backups", "risks", "backup_risks"),
    )
    batch = pb.OperationBatch(
        kinds=[pb.OperationKind.ValueType(kind) for kind in kinds],
        endpoints=[pb.Endpoint(nic=str(number)) for number in range(ends)],
        next_hops=[pb.NextHop(node=str(number)) for number in range(hops)],
        risk_groups=[pb.RiskGroup(links=row) for row in risks],
    )
    for name, values in zip(names, columns, strict=True):
        getattr(batch, name).extend(values)
    try:
        push = decode_push(pb.Push(mode=pb.PushMode.ValueType(mode), operations=batch))
    except MalformedPushError:
        return
    operations = push.operations
    assert len(operations.matches) == len(operations.groups) == len(kinds)
    for kind, row in zip(kinds, operations.groups, strict=True):
        assert (row == DELETE) == (kind == pb.OPERATION_KIND_DELETE)
        assert row < len(operations.keys)
