"""Two links die while the effects of the first loss are still under way, again and again.

In each episode two links die a short time apart. Often one is repaired while plans for them are
under way. Sometimes the controller dies, or a session breaks. Then all links are repaired. After
every event the packets are checked, see ``packets``. At the end of the run everything must settle,
with no packet lost.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from heddle_controller.model.demand import Demands
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_emulator.campaign.trials import between_switches
from heddle_emulator.topology import clos, three_tier
from heddle_emulator.traffic import flows_between
from tests.race.packets import Packets
from tests.race.scene import NAME, Scene
from tests.race.virtual import StuckError, run

EPISODES = 10
"""Races on one scene, since making a scene takes longer than a race."""
BETWEEN_SECONDS = 0.15
"""Most seconds between the failures: about as long as a plan takes to reach all switches."""

MEMORY = Path("/dev/shm")

FABRICS: tuple[Callable[[], Fabric], ...] = (
    lambda: clos(leaves=3, spines=3, nics_per_leaf=3, nics_per_host=3),
    lambda: clos(leaves=4, spines=4, nics_per_leaf=3, nics_per_host=3),
    lambda: clos(leaves=3, spines=2, nics_per_leaf=4, nics_per_host=4, parallel=2),
    lambda: three_tier(
        zones=2, leaves=2, spines=2, nics_per_leaf=2, cores=4, nics_per_host=2, taper=1.0
    ),
)


@dataclass(slots=True)
class Told:
    """Results of a run of races."""

    seed: int
    races: int = 0
    looks: int = 0
    """Moments at which all packets were followed."""
    pushes: int = 0
    generations: int = 0
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Course:
    """What races are run over."""

    draw: Callable[[Random, int], tuple[Fabric, Flows]]
    """Return a fabric and the flows that it carries, from a random generator and a seed."""
    race: Callable[[Scene], Awaitable[None]]
    """Run one episode."""


def raced(seed: int, episodes: int = EPISODES, course: Course | None = None) -> Told:
    """Run so many races on one scene, and stop at the first that finds anything wrong."""
    memory = str(MEMORY) if MEMORY.is_dir() else None  # races need no durable disk
    with tempfile.TemporaryDirectory(prefix="heddle-race-", dir=memory) as folder:
        told = Told(seed)
        try:
            run(_raced(Path(folder), told, episodes, course or DOUBLE))
        except StuckError as error:
            told.troubles = (f"race {told.races}: never settled: {error}",)
        return told


async def _raced(folder: Path, told: Told, episodes: int, course: Course) -> None:
    random = Random(told.seed)
    fabric, flows = course.draw(random, told.seed)
    scene = Scene(fabric, flows, random)
    packets = Packets(scene)
    found: list[str] = []

    def look() -> None:
        told.looks += 1
        if not found:
            found.extend(f"race {told.races}: {trouble}" for trouble in packets.troubles())

    async with scene.running(folder, demands_of(fabric, flows)):
        await scene.settled()
        scene.watch = look
        while told.races < episodes and not found:
            await course.race(scene)
            look()
            told.races += 1
        told.pushes = scene.gateway.pushes
        told.generations = (await scene.store.versions(NAME)).generation
    told.troubles = tuple(found[:5])


async def _race(scene: Scene) -> None:
    """Let two links die, with random events in between."""
    random = scene.random
    links = between_switches(scene.world).tolist()
    first, second = random.sample(links, 2)
    scene.change(first, up=False)
    if random.random() < 0.15:
        scene.later(BETWEEN_SECONDS, lambda: broken_session(scene))
    dies = random.random() < 0.15
    await moment(scene)
    scene.change(second, up=False)
    if dies:
        await moment(scene)
        await scene.lead_anew()
    if random.random() < 0.5:
        await moment(scene)
        scene.change(random.choice((first, second)), up=True)
    if random.random() < 0.7:  # else repairs come while things are under way
        await scene.settled()
    for row in np.flatnonzero(~scene.world.carries[::2]).tolist():
        await moment(scene)
        scene.change(row, up=True)
    if random.random() < 0.5:
        await scene.settled()


def broken_session(scene: Scene) -> None:
    """End a session. The agent connects again after a while."""
    name = scene.random.choice(sorted(scene.gateway.sessions(NAME)))
    scene.disconnect(name)
    scene.later(BETWEEN_SECONDS, lambda: scene.connect(name))


async def moment(scene: Scene) -> None:
    """Let a random time pass, at most ``BETWEEN_SECONDS``."""
    await scene.delays.pass_(BETWEEN_SECONDS)


def _flows(random: Random, seed: int) -> tuple[Fabric, Flows]:
    fabric = random.choice(FABRICS)()
    return fabric, flows_between(fabric, "permutation", seed=seed, qps=2)


DOUBLE = Course(_flows, _race)


def demands_of(fabric: Fabric, flows: Flows) -> Demands:
    """Return the same flows as a client would put them."""
    ids = fabric.structure.nodes.ids
    return Demands(
        ids=flows.ids,
        source=tuple(ids[row] for row in flows.source.tolist()),
        destination=tuple(ids[row] for row in flows.destination.tolist()),
        gbps=flows.gbps,
        job=tuple(flows.job_names[row] for row in flows.job.tolist()),
        phase=("",) * len(flows),
        qps=flows.qps,
        traffic_class=flows.traffic_class,
    )
