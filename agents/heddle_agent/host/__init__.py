"""On a host: which UDP source port each QP has to use, as files that programs read.

controllers -> watch: the ports of each job, of this host's NICs
watch -> files: written and removed, one job at a time
"""

from heddle_agent.host.files import PortsFolder
from heddle_agent.host.watch import HostAgent, Wanted

__all__ = ["HostAgent", "PortsFolder", "Wanted"]
