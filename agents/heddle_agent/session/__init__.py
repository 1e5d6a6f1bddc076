"""Streams to all controllers: first the session parameters, then pushes down and answers up."""

from heddle_agent.session.address import Address
from heddle_agent.session.backoff import Backoff
from heddle_agent.session.channels import Channels, Tls
from heddle_agent.session.conversation import PushTold
from heddle_agent.session.encode import Identity
from heddle_agent.session.resolve import Endpoint, Resolver
from heddle_agent.session.session import SessionOptions
from heddle_agent.session.sessions import Sessions

__all__ = [
    "Address",
    "Backoff",
    "Channels",
    "Endpoint",
    "Identity",
    "PushTold",
    "Resolver",
    "SessionOptions",
    "Sessions",
    "Tls",
]
