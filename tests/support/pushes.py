"""Pushes as read by an agent that has not been sent any names yet."""

from __future__ import annotations

from heddle.v1 import agent_pb2 as pb
from heddle_controller.reconcile.ports import Push
from heddle_controller.serve.codec.entries import SentNames, encoded


def push_to_pb(push: Push, nonce: int) -> pb.Push:
    """Return the message of one push, with every name that it uses."""
    (made,) = encoded([push])
    message = made.named(SentNames())
    message.push.nonce = nonce
    return message.push
