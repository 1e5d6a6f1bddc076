"""The SONiC backend: one rule of an ACL table per entry, written to the switch's own Redis.

It needs the extra ``heddle-agent[sonic]``.
"""

from heddle_agent.fib.sonic.backend import SonicFib, UnavailableSwitchError, socket_of
from heddle_agent.fib.sonic.schema import Exit

__all__ = ["Exit", "SonicFib", "UnavailableSwitchError", "socket_of"]
