"""The codecs turn any message into a model value or refuse it with the right error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from heddle.v1 import agent_pb2, demand_pb2, fabric_pb2, placement_pb2, plan_pb2
from heddle_controller.model.errors import InputError
from heddle_controller.model.program import no_entries
from heddle_controller.reconcile.ports import Push, PushMode
from heddle_controller.serve.codec import agent as agent_codec
from heddle_controller.serve.codec import demand as demand_codec
from heddle_controller.serve.codec import fabric as fabric_codec
from heddle_controller.serve.codec import job as job_codec
from heddle_controller.serve.what_if import suppose
from heddle_controller.state.errors import FailedPrecondition
from heddle_controller.state.records import Intent
from tests.support.store_samples import clos

FABRIC = clos()
IDS = st.sampled_from(
    ["", "n0.0", "n1.0", "l0", "s0", "h0.0", "h1.0", "j1", "fabrics/f1", "é", "\x00"]
)
FLOATS = st.sampled_from([0.0, -1.0, 400.0, 1e300, float("nan"), float("inf"), 1e-300])


def unsigned(bits: int) -> st.SearchStrategy[int]:
    """Draw small counts and the limits of the type."""
    return st.sampled_from([0, 1, 2, 3, 7, 4791, 2 ** (bits - 1) - 1, 2 ** (bits - 1), 2**bits - 1])


def scalar(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Draw values of a field that holds no message, often unusual ones."""
    kind = FieldDescriptor
    signed = st.sampled_from([-(2**31), -1, 0, 1, 2, 2**31 - 1])
    if field.type in (kind.TYPE_UINT32, kind.TYPE_UINT64):
        return unsigned(32 if field.type == kind.TYPE_UINT32 else 64)
    return {
        kind.TYPE_STRING: IDS,
        kind.TYPE_BYTES: st.binary(max_size=4),
        kind.TYPE_BOOL: st.booleans(),
        kind.TYPE_DOUBLE: FLOATS,
        kind.TYPE_ENUM: st.sampled_from([0, 1, 2, 3, 4, 99, -1]),
        kind.TYPE_INT32: signed,
        kind.TYPE_INT64: signed,
    }[field.type]


def messages(descriptor: Any, depth: int = 3) -> st.SearchStrategy[Message]:
    """Draw messages with any of their fields set to any value of their type."""
    made = GetMessageClass(descriptor)
    fields = {}
    for field in descriptor.fields:
        if field.message_type is None:
            one = scalar(field)
        elif depth > 0:
            one = messages(field.message_type, depth - 1)
        else:
            continue
        fields[field.name] = st.lists(one, max_size=3) if field.is_repeated else one
    return st.fixed_dictionaries({}, optional=fields).map(lambda values: made(**values))


INTENT = Intent("f1", 1, 0.0, 1, FABRIC, (), ())
PUSH = Push(PushMode.FULL_SYNC, 1, 1, FABRIC, no_entries(), no_entries())

DECODERS: dict[str, tuple[type[Message], Callable[[Any], object]]] = {
    "fabric": (fabric_pb2.Fabric, fabric_codec.fabric_from_pb),
    "job": (placement_pb2.JobSpec, lambda m: job_codec.job_from_pb("j", m)),
    "demands": (demand_pb2.PutDemandsRequest, lambda m: demand_codec.demands_from_pb(m.demands)),
    "introduction": (agent_pb2.SessionParameters, lambda m: agent_codec.session_from_pb(m, 1)),
    "result": (agent_pb2.PushResult, lambda m: agent_codec.stage_from_pb(m, PUSH, 1.0)),
    "links": (agent_pb2.LinkStateReport, agent_codec.links_from_pb),
    "counters": (agent_pb2.CounterReport, agent_codec.counters_from_pb),
    "what-if": (plan_pb2.WhatIfRequest, lambda m: suppose(INTENT, frozenset(), m)),
}


@pytest.mark.parametrize("name", list(DECODERS))
@given(data=st.data())
def test_any_message_is_taken_or_refused(name: str, data: st.DataObject) -> None:
    """Decoding raises nothing but InputError, or FailedPrecondition for a supposed job."""
    kind, decode = DECODERS[name]
    message = data.draw(messages(kind.DESCRIPTOR))
    with suppress(InputError, FailedPrecondition):
        decode(message)
