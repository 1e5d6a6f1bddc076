"""Flows that nobody announced: what they are called, wherever they are met.

They are found by what switches count, planned as a demand set of their own, and named by their
NICs. No client can put that set, and no other set can have such ids.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from heddle_controller.model.arrays import Ints
from heddle_controller.model.flows import Flows

SET = "unannounced"
"""Name of the demand set."""
UNANNOUNCED_JOB = "(unannounced)"
"""What they are counted with, which no job is called."""
PREFIX = "unannounced:"
"""Of their ids."""


def flow_id(source: str, destination: str) -> str:
    """The id of the flow between two NICs."""
    return f"{PREFIX}{source}->{destination}"


def unannounced_rows(flows: Flows) -> Ints:
    """Rows of the flows that nobody announced; looks at each flow that is counted with them."""
    if UNANNOUNCED_JOB not in flows.job_names:
        return np.empty(0, dtype=np.int64)
    rows = np.flatnonzero(flows.job == flows.job_names.index(UNANNOUNCED_JOB))
    mine = [flows.ids[row].startswith(PREFIX) for row in rows.tolist()]
    return rows[np.array(mine, dtype=np.bool_)]


def first_flows(flows: Flows, count: int) -> Flows:
    """The first of some flows, where all others are such that nobody announced."""
    told = flows.take(np.arange(count, dtype=np.int64))
    if UNANNOUNCED_JOB not in told.job_names:
        return told
    place = told.job_names.index(UNANNOUNCED_JOB)
    if (told.job == place).any():  # somebody's demands are counted with that, too
        return told
    names = told.job_names[:place] + told.job_names[place + 1 :]
    return replace(told, job=told.job - (told.job > place), job_names=names)
