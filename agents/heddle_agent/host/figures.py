"""What one host's agent counts, for those who look at its metrics; never a flow or a job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HostFigures:
    """Written by the event loop and by the thread that probes, each its own; read by anybody."""

    connected: bool = False
    """Whether a controller has told all ports in a stream that stands."""
    jobs: int = 0
    """Whose ports are told."""
    ports: int = 0
    """UDP source ports that QPs of these jobs have to use."""
    writes: int = 0
    """Files of jobs put in place or removed."""
    write_failures: int = 0
    last_write: float = 0.0
    """Unix seconds; 0 for never."""
    probes: int = 0
    """Sent, of the path that a port takes."""
    answers: int = 0
    """Of switches, to such probes."""
    wanted_paths: int = 0
    """Ports whose path a controller wants known."""
    known_paths: int = 0
    """Those of them whose path was found when they were probed last."""
    last_probing: float = 0.0
    """When all were probed, Unix seconds; 0 for never."""
    reports: int = 0
    """Of paths, taken by a controller."""
    report_failures: int = 0
