"""The counts of one host's agent, for its metrics; none of them is per flow or per job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HostFigures:
    """Counts that the event loop and the probing thread write, each its own, and anybody reads."""

    connected: bool = False
    """Whether a controller has sent all ports in the current stream."""
    jobs: int = 0
    """Number of jobs with ports."""
    ports: int = 0
    """Number of UDP source ports that QPs of these jobs have to use."""
    writes: int = 0
    """Number of changes of the folder that wrote or removed files."""
    write_failures: int = 0
    last_write: float = 0.0
    """Unix seconds; 0 for never."""
    probes: int = 0
    """Probes sent to find the paths of ports."""
    answers: int = 0
    """Answers of switches to these probes."""
    wanted_paths: int = 0
    """Number of ports whose path a controller wants to know."""
    known_paths: int = 0
    """Number of these ports whose path was found by the last probing."""
    last_probing: float = 0.0
    """When all were last probed, in Unix seconds; 0 for never."""
    reports: int = 0
    """Reports of paths that a controller has accepted."""
    report_failures: int = 0
