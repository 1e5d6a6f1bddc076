"""Decoding any bytes gives columns that fit each other, or a clear error."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from heddle.v1 import agent_pb2 as pb
from heddle_agent.session.decode import MalformedPushError, decode_push
from tests.support.agent_controllers import numbers

FIELDS = [field.name for field in pb.OperationBatch.DESCRIPTOR.fields if field.name != "names"]
columns = st.one_of(
    st.lists(st.integers(0, 3), max_size=3).map(lambda column: numbers(*column)),
    st.just(b""),
    st.binary(max_size=9),
)


@given(
    names=st.lists(st.sampled_from("abc"), max_size=3),
    batch=st.fixed_dictionaries(dict.fromkeys(FIELDS, columns)),
    mode=st.integers(0, 3),
)
def test_garbage_is_refused_in_words(names: list[str], batch: dict[str, bytes], mode: int) -> None:
    """Random columns give a complete push or a ``MalformedPushError`` with a message."""
    message = pb.OperationBatch(names=names, **batch)
    try:
        push = decode_push(pb.Push(mode=pb.PushMode.ValueType(mode), operations=message))
    except MalformedPushError as error:
        assert str(error)  # noqa: PT017 - either is right
        return
    operations = push.operations
    ways = struct.unpack(f"<{len(message.ways) // 4}I", message.ways)
    assert len(set(operations.matches)) == len(operations.groups) == len(ways)
    for way, row in zip(ways, operations.groups, strict=True):
        assert row == way - 1
        assert row < len(operations.keys)
