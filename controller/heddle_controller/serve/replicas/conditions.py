"""What agents of other replicas find wrong with links, so that each replica can tell of all.

Each tells its own whenever they change, and again every few seconds while there are any: so nothing
depends on a letter that is lost, and what a replica told that is gone goes with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping

from heddle.v1 import common_pb2
from heddle.v1 import relay_pb2 as pb
from heddle_controller.model.errors import InputError
from heddle_controller.serve.agents.link_book import UNWELL, Condition, Ends, ends_of
from heddle_controller.serve.codec import names
from heddle_controller.serve.replicas.post import COMMON, Post

TELL_SECONDS = 3.0
SILENT_SECONDS = 4 * TELL_SECONDS
"""What was not told again for so long is forgotten."""
MOST_LINKS = 10_000
"""Of a note."""

Told = tuple[float, Mapping[Ends, Condition]]


class Conditions:
    """Of links of all fabrics, as others tell them."""

    def __init__(self, post: Post, now: Callable[[], float] = time.monotonic) -> None:
        self.own: Callable[[str], Mapping[Ends, Condition]] = lambda _fabric: {}
        """What our own agents find wrong with a fabric's links; set by the wiring."""
        self._post = post
        self._now = now
        self._telling: set[str] = set()
        """Fabrics of which we have told something that has not been taken back."""
        self._others: dict[tuple[str, str], Told] = {}
        """By fabric and sender."""

    async def run(self) -> None:
        """Tell again now and then, until cancelled."""
        while True:
            await asyncio.sleep(TELL_SECONDS)
            for fabric in list(self._telling):
                self.tell(fabric)

    def tell(self, fabric: str) -> None:
        """What our agents say has changed, or is to be told again."""
        own = self.own(fabric)
        if not own and fabric not in self._telling:
            return
        links = [
            pb.LinkCondition(
                link=common_pb2.LinkRef(source=ends[0], target=ends[1], key=ends[2]),
                reason=condition.reason,
                loss_ratio=condition.loss_ratio,
                rate_ratio=condition.rate_ratio,
            )
            for ends, condition in list(own.items())[:MOST_LINKS]
        ]
        (self._telling.add if own else self._telling.discard)(fabric)
        note = pb.LinkConditions(fabric=names.fabric_name(fabric), links=links)
        self._post.put(COMMON, pb.Note(conditions=note))

    def heard(self, sender: str, told: pb.LinkConditions) -> None:
        """A replica tells of its agents."""
        if sender == self._post.box:
            return
        try:
            fabric = names.parse_fabric(told.fabric, "fabric")
        except InputError:
            return
        found = {
            ends_of(link.link): Condition(link.reason, link.loss_ratio, link.rate_ratio)
            for link in told.links[:MOST_LINKS]
            if link.reason in UNWELL
        }
        self._others.pop((fabric, sender), None)
        if found:
            self._others[fabric, sender] = (self._now(), found)

    def others(self, fabric: str) -> Iterator[tuple[Ends, Condition]]:
        """What agents of other replicas find wrong, each end by itself."""
        since = self._now() - SILENT_SECONDS
        for key in [key for key, (at, _) in self._others.items() if at < since]:
            del self._others[key]
        for (of, _), (_, found) in self._others.items():
            if of == fabric:
                yield from found.items()
