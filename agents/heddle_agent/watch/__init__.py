"""Link state and counters as the switch sees them."""

from heddle_agent.watch.damping import HoldDown
from heddle_agent.watch.kernel import KernelLinks
from heddle_agent.watch.manual import ManualLinks
from heddle_agent.watch.port import LinkWatch
from heddle_agent.watch.ports import ALIAS, Port, find_ports

__all__ = ["ALIAS", "HoldDown", "KernelLinks", "LinkWatch", "ManualLinks", "Port", "find_ports"]
