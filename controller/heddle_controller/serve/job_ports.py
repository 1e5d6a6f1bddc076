"""What a watcher of ports was told, and what is to be told now.

A stream keeps a digest of each job's ports, not the ports. Where the flows of a new plan are those
of the one before, as after a lost link, nothing is looked at: ports follow from flows alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np

from heddle.v1 import plan_pb2 as pb
from heddle_controller.model.arrays import Ints
from heddle_controller.serve.codec.ports import parts_to_pb, rows_by_job, sending_nics
from heddle_controller.serve.flow_index import FlowIndex, Ports


class ToldPorts:
    """The ports that one stream was told."""

    def __init__(self, request: pb.WatchJobPortsRequest) -> None:
        self._jobs = set(request.jobs)
        self._hosts, self._nics = list(request.hosts), list(request.nics)
        self._digests: dict[str, bytes] = {}
        self._of: Ports | None = None
        self._synced = False

    def events(self, index: FlowIndex) -> list[pb.JobPortsEvent]:
        """What to tell of a plan; may take a while.

        Raises:
            InputError: the fabric does not have the hosts or NICs that were asked for.
        """
        if index.by_port is self._of:
            return []
        rows = rows_leaving(index, self._hosts, self._nics)
        told: list[pb.JobPortsEvent] = []
        digests: dict[str, bytes] = {}
        for job, mine in rows_by_job(index.plan, rows):
            if self._jobs and job not in self._jobs:
                continue
            parts = parts_to_pb(index.plan, index.ports, mine, job)
            digests[job] = _digest(parts)
            if digests[job] != self._digests.get(job):
                told += _told(parts, index.generation)
        for job in self._digests.keys() - digests.keys():
            told.append(pb.JobPortsEvent(deleted=job))
        if not self._synced:
            told.append(pb.JobPortsEvent(synced=True))
        self._digests, self._of, self._synced = digests, index.by_port, True
        return told


def rows_leaving(index: FlowIndex, hosts: Sequence[str], nics: Sequence[str]) -> Ints:
    """Flow rows that leave some NICs, ascending; no host and no NIC: all.

    Raises:
        InputError: as ``sending_nics``.
    """
    sending = sending_nics(index.plan.fabric, hosts, nics)
    if sending is None:
        return np.arange(len(index.plan.flows), dtype=np.int64)
    return index.leaving(sending)


def _digest(parts: Sequence[pb.JobPorts]) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(part.SerializeToString(deterministic=True))
    return found.digest()


def _told(parts: Sequence[pb.JobPorts], generation: int) -> Iterator[pb.JobPortsEvent]:
    for number, part in enumerate(parts, 1):
        part.generation = generation
        yield pb.JobPortsEvent(ports=part, more=number < len(parts))
