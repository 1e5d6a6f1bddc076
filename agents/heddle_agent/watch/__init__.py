"""The state of the switch's links, as the switch sees it."""

from heddle_agent.watch.damping import HoldDown
from heddle_agent.watch.kernel import KernelLinks
from heddle_agent.watch.manual import ManualLinks
from heddle_agent.watch.port import LinkWatch
from heddle_agent.watch.ports import ALIAS, Port, find_ports
from heddle_agent.watch.reports import PortReports

__all__ = [
    "ALIAS",
    "HoldDown",
    "KernelLinks",
    "LinkWatch",
    "ManualLinks",
    "Port",
    "PortReports",
    "find_ports",
]
