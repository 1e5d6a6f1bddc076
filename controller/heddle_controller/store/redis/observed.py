"""What agents report of links, in the Redis store.

What an agent said last is kept in the memory of the replica that has its session; the
store gets it when the set of its links that are down changes, and with every full
report, which begins a session: so whatever a replica that had the session before may
still have under way is known to be old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import orjson

from heddle_controller.state.records import LinkReport
from heddle_controller.store.common.reporters import (
    Reporter,
    known_links,
    links_json,
    parse_links,
    restated,
)
from heddle_controller.store.redis.change import INTENT, NEITHER, Change, Op, put
from heddle_controller.store.redis.fabric import ground, known, new_ground, record_of, states_of
from heddle_controller.store.redis.part import NO_ASK, Part
from heddle_controller.store.redis.view import View

SEEN = "seen"


def reporters_of(view: View) -> Mapping[str, Reporter]:
    """What agents said last, as far as the store has it, by switch."""
    return view.all(SEEN, _parse)


class ObservedPart(Part):
    """``report_links`` of ``FabricStore``."""

    async def report_links(self, fabric: str, report: LinkReport) -> bool:
        """See ``FabricStore``."""
        await self._shared.mirror.fresh()
        self._shared.link.check()
        view = self._shared.mirror.view(fabric)
        await self._structure_of(view)
        if self._silent(view, report):
            return False
        # One of our own at a time: they would only come between each other.
        async with self._shared.reporting.setdefault(fabric, asyncio.Lock()):
            return await self._report(fabric, report)

    def _silent(self, view: View, report: LinkReport) -> bool:
        """Take a report into memory, if there is nothing in it for the store."""
        before, now = self._after(view, report)
        if now.down() != before.down() or (report.full and now != before):
            return False
        self._keep(view, report.switch, now)
        return True

    async def _report(self, fabric: str, report: LinkReport) -> bool:
        def decide(view: View | None) -> tuple[Change, tuple[Reporter, bytes, bool]]:
            return self._decide(known(view, fabric), report)

        now, raw, changed = await self._write(fabric, NO_ASK, decide)
        self._shared.reporters[fabric, report.switch] = (raw, now)
        return changed

    def _decide(
        self, view: View, report: LinkReport
    ) -> tuple[Change, tuple[Reporter, bytes, bool]]:
        return self._restatement(view, report.switch, *self._after(view, report))

    def _restatement(
        self, view: View, switch: str, before: Reporter, now: Reporter
    ) -> tuple[Change, tuple[Reporter, bytes, bool]]:
        """Write what an agent says now, and what follows of it for its links."""
        field, raw = f"{SEEN}/{switch}", _raw(now)
        ops: list[Op] = [put(field, raw)]
        guards = [(field, view.raw(field))]
        moment, turned = self._shared.now(), before.down() ^ now.down()
        if turned:
            record, states = record_of(view, self._shared.structures), states_of(view)
            reporters = {**reporters_of(view), switch: now}
            observed = restated(record.fabric, states.observed, reporters, turned)
            changed = observed != states.observed
            if changed.any():
                times = np.where(changed, moment, states.time)
                packed = replace(states, observed=observed, time=times).packed()
                ops += [put("states", packed), new_ground()]
                guards.append(ground(view))
        moved = len(ops) > 1
        kind = INTENT if moved else NEITHER
        change = Change(view.name, kind, tuple(guards), tuple(ops), time=moment)
        return change, (now, raw, moved)

    def _after(self, view: View, report: LinkReport) -> tuple[Reporter, Reporter]:
        """What the agent had said, and says now."""
        stored = view.raw(f"{SEEN}/{report.switch}")
        base, mine = self._shared.reporters.get((view.name, report.switch), (None, Reporter()))
        if base != stored:  # another replica has heard from it since
            mine = view.get(SEEN, report.switch, _parse) or Reporter()
        fabric = record_of(view, self._shared.structures).fabric
        return mine, mine.after(known_links(fabric, report))

    def _keep(self, view: View, switch: str, reporter: Reporter) -> None:
        self._shared.reporters[view.name, switch] = (view.raw(f"{SEEN}/{switch}"), reporter)


def _raw(reporter: Reporter) -> bytes:
    return orjson.dumps(reporter.instance) + b"\n" + links_json(reporter)


def _parse(raw: bytes) -> Reporter:
    instance, _, links = raw.partition(b"\n")
    return Reporter(orjson.loads(instance), parse_links(links))
