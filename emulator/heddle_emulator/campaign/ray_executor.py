"""Trials on a Ray cluster: a seat is an actor, and the same trials come to the same results.

Ray is an extra of this distribution (``heddle-emulator[ray]``) and is imported only when an
address is given. Each actor takes two processors: one for its agents, one for its controller.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from heddle_controller.model.errors import refuse
from heddle_emulator.campaign.campaign import Campaign
from heddle_emulator.campaign.events import Trial
from heddle_emulator.campaign.result import Result
from heddle_emulator.campaign.seat import CampaignError, Seat

CPUS = 2


@dataclass(frozen=True, slots=True)
class Ray:
    """Actors of a cluster; the address is as for ``ray.init``, ``auto`` or ``local`` among them."""

    address: str
    workers: int = 0
    """0 takes as many as the cluster has room for."""

    def results(self, campaign: Campaign, trials: Sequence[Trial]) -> Iterator[Result]:
        """See ``Executor``."""
        ray = _module("ray")
        ray.init(address=self.address, ignore_reinit_error=True, log_to_driver=False)
        actor = ray.remote(num_cpus=CPUS)(Seat)
        room = int(ray.cluster_resources().get("CPU", CPUS)) // CPUS
        told = ray.put(campaign)
        seats = [actor.remote(told) for _ in range(min(self.workers or room or 1, len(trials)))]
        try:
            pool = _module("ray.util").ActorPool(seats)
            yield from pool.map_unordered(lambda seat, trial: seat.run.remote(trial), trials)
        except _module("ray.exceptions").RayError as error:
            raise CampaignError(" ".join(str(error).split())) from error
        finally:
            ray.get([seat.close.remote() for seat in seats])
            ray.shutdown()


def _module(name: str) -> Any:  # noqa: ANN401 - Ray has no types that we could name here
    try:
        return importlib.import_module(name)
    except ImportError as error:
        cure = "is not installed; pip install 'heddle-emulator[ray]', or leave --ray out"
        raise refuse("campaign", "ray", cure) from error
