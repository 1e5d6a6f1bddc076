"""The stream to the controllers: parameters first, then pushes down and acks up."""

from heddle_agent.session.address import Address
from heddle_agent.session.backoff import Backoff
from heddle_agent.session.channels import Channels, Tls
from heddle_agent.session.encode import Identity
from heddle_agent.session.session import Session, SessionOptions

__all__ = [
    "Address",
    "Backoff",
    "Channels",
    "Identity",
    "Session",
    "SessionOptions",
    "Tls",
]
