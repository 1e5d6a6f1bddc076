"""Races beyond two failures: more links at once, more shapes of fabric, switches that forget.

Fabrics have two tiers, three tiers or rails, and flows have one to four QPs. In an episode up to
four links die and come back in any order, and some stay down for the next episode. Meanwhile
sessions break, the controller dies, and now and then an agent loses its whole table. Until such a
switch holds a plan again packets may loop through it, so arrival is not checked then.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import numpy as np

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_emulator.campaign.trials import between_switches
from heddle_emulator.topology import clos, rail_optimised, three_tier
from heddle_emulator.traffic import flows_between
from tests.race.race import BETWEEN_SECONDS, Course, broken_session, moment
from tests.race.scene import NAME, Scene

FABRICS: tuple[Callable[[], Fabric], ...] = (
    lambda: clos(leaves=4, spines=3, nics_per_leaf=2, nics_per_host=2),
    lambda: clos(leaves=3, spines=2, nics_per_leaf=3, nics_per_host=3, parallel=2),
    lambda: rail_optimised(units=1, servers=3, rails=3, spines=2, parallel=2),
    lambda: rail_optimised(units=2, servers=2, rails=2, spines=3, parallel=1),
    lambda: three_tier(
        zones=2, leaves=2, spines=2, nics_per_leaf=2, cores=4, nics_per_host=2, taper=1.0
    ),
    lambda: three_tier(
        zones=2, leaves=3, spines=2, nics_per_leaf=1, cores=2, nics_per_host=1, taper=1.0
    ),
    lambda: three_tier(
        zones=3, leaves=2, spines=2, nics_per_leaf=1, cores=2, nics_per_host=1, taper=2.0
    ),
)
MOST_LOST = 4
"""Most links that die in one episode."""


def _flows(random: Random, seed: int) -> tuple[Fabric, Flows]:
    fabric = random.choice(FABRICS)()
    return fabric, flows_between(fabric, "permutation", seed=seed, qps=random.randint(1, 4))


async def _race(scene: Scene) -> None:
    random = scene.random
    live = [row for row in between_switches(scene.world).tolist() if scene.world.carries[2 * row]]
    lost = random.sample(live, min(len(live) - 1, random.randint(2, MOST_LOST)))
    if random.random() < 0.3:
        scene.later(BETWEEN_SECONDS, lambda: broken_session(scene))
    if random.random() < 0.15:
        scene.later(BETWEEN_SECONDS, lambda: _forgets(scene))
    dies = random.random() < 0.3
    for row in lost:
        scene.change(row, up=False)
        await moment(scene)
        if random.random() < 0.3:
            scene.change(random.choice(lost), up=True)
    if dies:
        await scene.lead_anew()
    if random.random() < 0.5:
        await scene.settled()
    for row in np.flatnonzero(~scene.world.carries[::2]).tolist():
        if random.random() < 0.7:  # links left down stay so in the next episode
            await moment(scene)
            scene.change(row, up=True)
    if random.random() < 0.5:
        await scene.settled()


def _forgets(scene: Scene) -> None:
    """End an agent's session and clear its table; it connects again after a while."""
    name = scene.random.choice(sorted(scene.agents))
    if name in scene.gateway.sessions(NAME):
        scene.disconnect(name)
        scene.forgot.add(name)
        scene.agents[name].forwarding.withdraw()
        scene.later(BETWEEN_SECONDS, lambda: scene.connect(name))


WILD = Course(_flows, _race)
