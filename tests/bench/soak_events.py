"""The events of a soak: each random event leaves the fabric in a state that can be repaired.

Whatever is acknowledged goes into ``house.jobs``. What was asked for and not answered may be there
or not, and is cleared away in the end. No leaf is ever left without a link.
"""

from __future__ import annotations

import asyncio
import random
import signal
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from grpc import aio

from heddle.client import HeddleError
from heddle.v1 import common_pb2, fabric_pb2, overlay_pb2, placement_pb2, plan_pb2
from heddle.v1.fabric_pb2_grpc import FabricServiceStub
from heddle.v1.overlay_pb2_grpc import OverlayServiceStub
from heddle.v1.placement_pb2_grpc import PlacementServiceStub
from heddle.v1.plan_pb2_grpc import PlanServiceStub
from heddle_emulator.client.api import job_to_pb
from tests.bench.soak_house import Alone
from tests.support.replicating import NAME, SECONDS, House, Replica, job

ASLEEP = 2.0
"""Seconds for which a leader is suspended, longer than its lease."""
CALL = 5.0
"""Seconds after which a call counts as not answered."""
ACTIVE, WITHDRAWN = overlay_pb2.OVERLAY_STATE_ACTIVE, overlay_pb2.OVERLAY_STATE_WITHDRAWN
Link = tuple[str, str]


@dataclass
class Events:
    """The random events, and the state that they have left."""

    house: House
    chance: random.Random
    steady: Replica
    """Never killed if there is another controller, so that its growth can be seen."""
    mortal: Replica
    asked: set[str] = field(default_factory=set)
    """Jobs that may be there or not."""
    down: set[Link] = field(default_factory=set)
    drained: set[Link] = field(default_factory=set)
    """Links that may be drained."""
    withdrawn: bool = False
    """Whether the overlay may be withdrawn."""
    stopped: set[int] = field(default_factory=set)
    number: int = 0
    count: Counter[str] = field(default_factory=Counter)

    async def one(self, *, young: bool) -> None:
        """Run the next event; a controller that is alone dies only while the soak is young."""
        kinds: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self.submit, 24),
            (self.update, 6),
            (self.delete, 18),
            (self.link, 18),
            (self.flap, 4),
            (self.drain, 6),
            (self.agent, 9),
            (self.visit, 6),
            (self.overlay, 2),
            (self.sleep, 2),
        ]
        if not isinstance(self.house, Alone):
            kinds += [(self.restart, 4), (self.redis_asleep, 2), (self.redis_restart, 2)]
        elif young:
            kinds += [(self.restart, 8)]
        (event,) = self.chance.choices(*zip(*kinds, strict=True))
        await event()

    def replica(self) -> Replica:
        """Return any of the controllers."""
        return self.chance.choice([self.steady, self.mortal])

    def _free(self, *more: str) -> list[str]:
        """Return the hosts without a job, plus the given ones."""
        used = {host for one in self.house.jobs for host in one.hosts} - set(more)
        return [host for host in self.house.fabric.structure.host_names if host not in used]

    def _some(self, hosts: list[str]) -> tuple[str, ...]:
        return tuple(self.chance.sample(hosts, self.chance.randint(2, min(4, len(hosts)))))

    async def submit(self) -> None:
        """Submit a job on free hosts; one that is not acknowledged may exist all the same."""
        free = self._free()
        if len(free) < 2:
            return
        self.number += 1
        name = f"j{self.number}"
        try:
            client = await self.house.client(self.replica())
            await self.house.submit(client, job(name, self._some(free)))
            self.count["submitted"] += 1
        except HeddleError:
            self.asked.add(name)
            self.count["not acknowledged"] += 1

    async def update(self) -> None:
        """Move a job to other hosts."""
        if not self.house.jobs:
            return
        before = self.chance.choice(self.house.jobs)
        after = job(before.name, self._some(self._free(*before.hosts)))
        self.house.jobs = [one for one in self.house.jobs if one.name != before.name]
        request = placement_pb2.UpdateJobRequest(
            name=f"{NAME}/jobs/{before.name}", spec=job_to_pb(after), request_id=str(uuid.uuid4())
        )
        if await self._called(lambda ch: PlacementServiceStub(ch).UpdateJob(request, timeout=CALL)):
            self.house.jobs.append(after)
            self.count["updated"] += 1
        else:
            self.asked.add(before.name)

    async def delete(self) -> None:
        """Delete a job, or one whose submission was not answered."""
        names = [one.name for one in self.house.jobs] + sorted(self.asked)
        if not names:
            return
        name = self.chance.choice(names)
        self.house.jobs = [one for one in self.house.jobs if one.name != name]
        self.asked.add(name)
        await self.deleted(name)

    async def deleted(self, name: str) -> bool:
        """Delete a job; return whether it is surely gone."""
        request = placement_pb2.DeleteJobRequest(name=f"{NAME}/jobs/{name}")
        async with self.replica().controller.channel() as channel:
            try:
                await PlacementServiceStub(channel).DeleteJob(request, timeout=CALL)
            except aio.AioRpcError as error:
                if error.code().name != "NOT_FOUND":
                    self.count["not acknowledged"] += 1
                    return False
        self.asked.discard(name)
        self.count["deleted"] += 1
        return True

    async def _called(self, call: Callable[[aio.Channel], Awaitable[object]]) -> bool:
        """Call some replica; return whether the call succeeded."""
        async with self.replica().controller.channel() as channel:
            try:
                await call(channel)
            except aio.AioRpcError:
                self.count["not acknowledged"] += 1
                return False
        return True

    def _link(self) -> Link:
        zone, leaf, spine = (self.chance.randrange(limit) for limit in (2, 4, 2))
        return f"z{zone}-l{leaf}", f"z{zone}-s{spine}"

    async def link(self) -> None:
        """Take a link between leaf and spine down or up; each leaf keeps at least one."""
        if self.down and self.chance.random() < 0.5:
            one = self.chance.choice(sorted(self.down))
            self.down.discard(one)
            await self.house.fleet.set_link(*one, None, up=True)
            self.count["link up"] += 1
            return
        one = self._link()
        if any(leaf == one[0] for leaf, _ in self.down):
            return
        self.down.add(one)
        await self.house.fleet.set_link(*one, None, up=False)
        self.count["link down"] += 1

    async def flap(self) -> None:
        """Take a link down and up a few times, faster than any plan is made."""
        one = self._link()
        if any(leaf == one[0] for leaf, _ in self.down):
            return
        for _ in range(self.chance.randint(2, 5)):
            await self.house.fleet.set_link(*one, None, up=False)
            await self.house.fleet.set_link(*one, None, up=True)
        self.count["flapped"] += 1

    async def drain(self) -> None:
        """Drain a link, or undo that."""
        up = bool(self.drained) and self.chance.random() < 0.6
        one = self.chance.choice(sorted(self.drained)) if up else self._link()
        self.drained.add(one)
        await self.undrained(one, up=up)

    async def undrained(self, one: Link, *, up: bool = True) -> bool:
        """Set whether a link is up or drained; return whether that was acknowledged."""
        request = fabric_pb2.SetLinkStateRequest(
            fabric=NAME,
            link=common_pb2.LinkRef(source=one[0], target=one[1], key="0"),
            admin_state=common_pb2.STATE_UP if up else common_pb2.STATE_DRAINED,
            request_id=str(uuid.uuid4()),
        )
        if not await self._called(
            lambda channel: FabricServiceStub(channel).SetLinkState(request, timeout=CALL)
        ):
            return False
        self.count["undrained" if up else "drained"] += 1
        if up:
            self.drained.discard(one)
        return True

    async def overlay(self) -> None:
        """Withdraw the overlay of the whole fabric, or restore it."""
        back, self.withdrawn = self.withdrawn, True
        await self.restored(ACTIVE if back else WITHDRAWN)

    async def restored(self, state: overlay_pb2.OverlayState.ValueType = ACTIVE) -> bool:
        """Set the state of the overlay; return whether that was acknowledged."""
        request = overlay_pb2.SetOverlayRequest(
            name=f"{NAME}/overlay", state=state, request_id=str(uuid.uuid4())
        )
        if not await self._called(
            lambda channel: OverlayServiceStub(channel).SetOverlay(request, timeout=CALL)
        ):
            return False
        self.withdrawn = state == WITHDRAWN
        self.count["withdrawn" if self.withdrawn else "restored"] += 1
        return True

    async def agent(self) -> None:
        """Stop an agent, or start a stopped one with an empty table."""
        if self.stopped:
            row = self.stopped.pop()
            self.house.fleet.boot(row)
            self.count["agent started"] += 1
            return
        row = self.chance.choice(sorted(self.house.fleet.agents))
        await self.house.fleet.stop(row)
        self.stopped.add(row)
        self.count["agent stopped"] += 1

    async def visit(self) -> None:
        """Open streams that watch everything, read none of them, and leave."""
        async with self.replica().controller.channel() as channel:
            jobs, plans = PlacementServiceStub(channel), PlanServiceStub(channel)
            fabrics = FabricServiceStub(channel)
            watched = [
                stream
                for _ in range(5)
                for stream in (
                    jobs.WatchJobs(placement_pb2.WatchJobsRequest(parent=NAME)),
                    plans.WatchPlan(plan_pb2.WatchPlanRequest(name=f"{NAME}/plan")),
                    fabrics.WatchFabric(fabric_pb2.WatchFabricRequest(name=NAME)),
                )
            ]
            await asyncio.sleep(self.chance.uniform(0, 0.3))
            for stream in watched:
                if self.chance.random() < 0.5:
                    stream.cancel()
        self.count["visited"] += 1

    async def restart(self) -> None:
        """End a controller, gracefully or not, and start another in its place."""
        how = self.chance.choice([signal.SIGKILL, signal.SIGTERM])
        led = self.house.leader() is self.mortal
        only = self.mortal is self.steady
        self.mortal.signal(how)
        async with asyncio.timeout(SECONDS):
            await self.mortal.controller.process.wait()
        self.house.replicas.remove(self.mortal)
        self.mortal = await self.house.again(self.mortal)
        if only:
            self.steady = self.mortal
        self.count[f"{how.name}{' of the leader' if led else ''}"] += 1

    async def sleep(self) -> None:
        """Suspend the steady controller until its lease is over."""
        self.steady.signal(signal.SIGSTOP)
        await asyncio.sleep(ASLEEP)
        self.steady.signal(signal.SIGCONT)
        self.count["asleep"] += 1

    async def redis_asleep(self) -> None:
        """Suspend Redis, for less than a lease or for more."""
        self.house.redis.signal(signal.SIGSTOP)
        await asyncio.sleep(ASLEEP * self.chance.uniform(0.1, 1.5))
        self.house.redis.signal(signal.SIGCONT)
        self.count["redis asleep"] += 1

    async def redis_restart(self) -> None:
        """Kill Redis, and start it with what it has on its disk."""
        self.house.redis.kill()
        await asyncio.sleep(self.chance.uniform(0, ASLEEP))
        await asyncio.to_thread(self.house.redis.start)
        self.count["redis restarted"] += 1
