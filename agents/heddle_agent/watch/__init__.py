"""Link state and counters as the switch sees them."""

from heddle_agent.watch.manual import ManualLinks
from heddle_agent.watch.port import LinkWatch

__all__ = ["LinkWatch", "ManualLinks"]
