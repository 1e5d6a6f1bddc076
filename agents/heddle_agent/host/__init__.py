"""The agent of a host: tells programs, in files, which UDP source port each QP has to use.

- controllers -> watch: the ports of each job, for this host's NICs
- switches -> trace: which path each port takes, where switches only hash
- watch -> report -> controllers: the paths of the ports that controllers want to know
- watch or a plan by ports, switches -> steer: the ports of working paths
- watch, steer -> files: written and removed, one job at a time
"""

from heddle_agent.host.figures import HostFigures
from heddle_agent.host.files import PortsFolder
from heddle_agent.host.report import PathReporter, Probing
from heddle_agent.host.steer import PathSteering, file_steering, routes_of
from heddle_agent.host.watch import HostAgent, Wanted

__all__ = [
    "HostAgent",
    "HostFigures",
    "PathReporter",
    "PathSteering",
    "PortsFolder",
    "Probing",
    "Wanted",
    "file_steering",
    "routes_of",
]
