"""What is read and written of facts in the Redis store, and the snapshot of intent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from redis.asyncio import Redis

from heddle_controller.state.audit import AuditEntry, AuditPage, AuditRecord, Mark
from heddle_controller.state.records import Intent, JobFacts, Programmed, Versions
from heddle_controller.store.redis.change import FACTS, Change, Op
from heddle_controller.store.redis.demands import DemandPart
from heddle_controller.store.redis.fabric import JOB, known, meta_of, overlay_of, record_of
from heddle_controller.store.redis.jobs import FACT, jobs_of
from heddle_controller.store.redis.part import NO_ASK
from heddle_controller.store.redis.plans import KEPT_FOR, PROGRAMMED, programmed_bytes
from heddle_controller.store.redis.view import View


class FactPart(DemandPart):
    """``intent``, ``versions``, ``record_...`` and ``audit``."""

    async def intent(self, fabric: str) -> Intent:
        """See ``PlanStore``."""
        while True:
            view = await self._view(fabric)
            await self._structure_of(view)
            await self._bodies(view)
            with self._sound():  # nothing is awaited from here on: one moment
                demands = self._demands_of(view)
                if demands is None or meta_of(view).digest not in self._shared.structures:
                    continue
                record = record_of(view, self._shared.structures)
                return Intent(
                    name=fabric,
                    version=view.number("version"),
                    change_time=float(view.raw("change_time") or 0.0),
                    revision=record.revision,
                    fabric=record.merged(),
                    jobs=tuple(jobs_of(view)),
                    demands=demands,
                    overlay=overlay_of(view),
                )

    async def versions(self, fabric: str) -> Versions:
        """See ``Store``."""
        return (await self._view(fabric)).versions()

    async def record_programmed(
        self, fabric: str, *, epoch: int, generation: int, switches: Sequence[str], time: float
    ) -> None:
        """See ``PlanStore``."""
        raw = programmed_bytes(Programmed(epoch, generation, time))
        ops = tuple(Op("above", f"{PROGRAMMED}/{s}", raw, str(generation)) for s in switches)
        await self._note(fabric, epoch, ops)

    async def record_kept(self, fabric: str, *, epoch: int, version: int) -> None:
        """See ``PlanStore``."""
        op = Op("above", KEPT_FOR, str(version).encode(), str(version))
        await self._note(fabric, epoch, (op,))

    async def record_jobs(self, fabric: str, *, epoch: int, facts: Mapping[str, JobFacts]) -> None:
        """See ``PlanStore``."""
        ops = tuple(
            Op("needs", f"{FACT}/{name}", orjson.dumps(fact), f"{JOB}/{name}")
            for name, fact in facts.items()
        )
        await self._note(fabric, epoch, ops)

    async def _note(self, fabric: str, epoch: int, ops: tuple[Op, ...]) -> None:
        """Write facts. Raises ``StaleEpoch``, ``NotFound``."""

        def decide(view: View | None) -> tuple[Change, None]:
            known(view, fabric)
            return Change(fabric, FACTS, ops=ops, epoch=epoch, time=self._shared.now()), None

        await self._write(fabric, NO_ASK, decide)

    async def audit(self, *, after: int = 0, limit: int = 0) -> AuditPage:
        """See ``AuditStore``."""
        keys = self._shared.keys

        async def read(client: Redis) -> list[Any]:
            async with client.pipeline(transaction=True) as pipeline:
                pipeline.xrange(keys.audit, f"({after}-0", "+", count=limit or None)
                pipeline.hmget(keys.audit_marks, ["number", "hash", "anchor", "anchor_hash"])
                answers: list[Any] = await pipeline.execute()
                return answers

        rows, (number, last, dropped, anchor) = await self._shared.link.call(read)
        head = Mark(int(number), last) if number else Mark()
        records = tuple(_audit_record(*row) for row in rows)
        return AuditPage(Mark(int(dropped), anchor) if dropped else Mark(), head, records)


def _audit_record(identity: bytes, fields: dict[bytes, bytes]) -> AuditRecord:
    entry = AuditEntry(**orjson.loads(fields[b"e"]))
    return AuditRecord(int(identity.partition(b"-")[0]), fields[b"h"], entry)
