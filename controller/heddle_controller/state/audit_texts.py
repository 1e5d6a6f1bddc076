"""What the audit trail tells of a thing before and after a change: JSON, small and enough.

A job, a state: all of it. What is large (a fabric, a demand set, a job of thousands of
hosts) is told by its digest and what a person wants to know first, so that a record
never takes more than ``_MOST`` bytes. Etags and versions are left out: they are the
store's, and no part of what somebody wanted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from heddle.gpus import gpu_ranges
from heddle.names import link_name
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.job import Job
from heddle_controller.state.codec.jobs import job_json
from heddle_controller.state.records import Reservation, Rollback

_MOST = 4096
"""Bytes of one side."""
_NAMED = 20
"""Links or switches told by name."""


def job_text(job: Job) -> str:
    """A job whole, or its digest, size and where its hosts begin."""
    content = job_json(job)
    if len(content) <= _MOST:
        return content.decode()
    some = {"host_count": len(job.hosts), "gpus_per_host": job.gpus_per_host}
    return _text({"name": job.name[:256], **some, **digest_of(content)})


def reservation_text(one: Reservation) -> str:
    """A reservation by its number of hosts, where they begin, and its end."""
    return _text(
        {
            "name": one.name,
            "host_count": len(one.hosts),
            "hosts": [host[:64] for host in one.hosts[:_NAMED]],
            **({"gpus": [gpu_ranges(part) for part in one.gpus[:_NAMED]]} if one.gpus else {}),
            "end_time": one.end_time,
        }
    )


def fabric_text(title: str, structure: str, fabric: Fabric) -> str:
    """A fabric by the digest of its structure, and what of it the operator took out."""
    content, ids = fabric.structure, fabric.structure.nodes.ids
    links = np.flatnonzero(fabric.link_state != State.UP).tolist()
    nodes = np.flatnonzero(fabric.node_state != State.UP).tolist()
    ends = [
        link_name(
            ids[int(content.links.a[row])], ids[int(content.links.b[row])], content.links.key[row]
        )
        for row in links[:_NAMED]
    ]
    return _text(
        {
            "title": title[:256],
            "structure": structure,
            "node_count": fabric.node_count,
            "link_count": fabric.link_count,
            "links_not_up": len(links),
            "links": {
                name[:64]: _word(int(fabric.link_state[row]))
                for name, row in zip(ends, links, strict=False)
            },
            "switches_not_up": len(nodes),
            "switches": {
                ids[row][:64]: _word(int(fabric.node_state[row])) for row in nodes[:_NAMED]
            },
        }
    )


def demands_text(packed: bytes) -> str:
    """A demand set by the digest of its packed form."""
    return _text(digest_of(packed))


def state_text(state: State) -> str:
    """An administrative state."""
    return _text({"admin_state": state.name})


def overlay_text(*, withdrawn: bool) -> str:
    """Whether the overlay is withdrawn."""
    return _text({"overlay": "withdrawn" if withdrawn else "active"})


def rollback_text(rollback: Rollback | None) -> str:
    """Which plan is kept to, and until when; empty where none is."""
    if rollback is None:
        return ""
    return _text({"generation": rollback.generation, "end_time": rollback.end_time})


def digest_of(content: bytes) -> dict[str, Any]:
    """What stands for content that is too large to be told."""
    return {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}


def _word(state: int) -> str:
    return State(state).name


def _text(fields: Mapping[str, Any]) -> str:
    return orjson.dumps(fields).decode()
