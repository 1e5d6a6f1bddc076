"""When the last flow is done, each having a second's worth of its demand to send.

Rates are fair among the flows that still send, and change when one is done: then the
others take what it leaves. The phases of a job follow one another in the order of
their names in the flow file, each when the one before has ended; flows without a
phase send from the start. So a fabric that holds nothing up takes a second for each
phase of the job that has most of them.

Flows that are done within a small part of the time gone by leave together, the first
of them no sooner than the last, or 50,000 flows would be 50,000 steps. So the answer is
never too short, and no more than a few such parts too long.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.fabric import Bools, Floats, Ints
from heddle_controller.model.flows import ANY_PHASE, Flows
from heddle_controller.model.plan import Paths
from heddle_emulator.fluid.rates import path_rates

FEW = 4000
"""Flows of which each step is cheap."""
EXACT, COARSE = 0.002, 0.02
"""The part of the time gone by, for few flows and for many."""


def makespan(capacity: Floats, flows: Flows, paths: Paths, parts: Floats) -> float:
    """Seconds until every flow is done; each must have a path. 0 without flows."""
    left = flows.gbps.copy()
    part = EXACT if len(flows) <= FEW else COARSE
    seconds = 0.0
    while (left > 0).any():
        sending = _sending(flows, left)
        rate = _rates(capacity, flows, (paths, parts), sending)
        times = left[sending] / rate[sending]
        first = float(times.min())
        together = times <= first + part * (seconds + first)
        step = float(times[together].max())
        seconds += step
        left = np.where(sending, np.maximum(left - rate * step, 0.0), left)
        left[np.flatnonzero(sending)[together]] = 0.0
    return seconds


def _sending(flows: Flows, left: Floats) -> Bools:
    """Flows of the first phase of each job that is not done, and those without a phase."""
    waiting = left > 0
    phased = np.flatnonzero(waiting & (flows.phase != ANY_PHASE))
    present: Ints = np.full(len(flows.job_names), len(flows.phase_names), dtype=np.int64)
    np.minimum.at(present, flows.job[phased], flows.phase[phased])
    now = (flows.phase == ANY_PHASE) | (flows.phase == present[flows.job])
    sending: Bools = waiting & now
    return sending


def _rates(capacity: Floats, flows: Flows, carried: tuple[Paths, Floats], sending: Bools) -> Floats:
    """Gbit/s of each flow, 0 for those that do not send."""
    paths, parts = carried
    rows = np.flatnonzero(sending[paths.flow])
    some = paths.take(rows)
    used = parts[sending[paths.flow][paths.owner()]]
    return np.bincount(
        some.flow, weights=path_rates(capacity, flows, some, used), minlength=len(flows)
    ).astype(np.float64)
