"""Whose flows the ids of a demand set are."""

from __future__ import annotations

from heddle_controller.model.demand import Demands
from heddle_controller.model.job import job_of_flow


def jobs_meant(demands: Demands) -> frozenset[str]:
    """Names of the jobs whose flows, were there such jobs, would have ids of this set."""
    return frozenset(filter(None, {job_of_flow(flow) for flow in demands.ids}))
