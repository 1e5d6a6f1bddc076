"""How far links are from being idle: what the watcher of a drain is told.

A switch may hold entries of older plans. So links are idle once every switch has come to a plan
from which on no plan used them, and that answers to an intent in which they take no new paths.
"""

from __future__ import annotations

from heddle.v1 import plan_pb2 as pb
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.plan.drain import flows_over
from heddle_controller.serve.codec.plan import NAMES_PER_ANSWER
from heddle_controller.serve.what_if import link_rows
from heddle_controller.state.records import Committed


class DrainWatch:
    """One watcher of some links."""

    def __init__(self, request: pb.WatchDrainRequest) -> None:
        """Raises ``InputError`` where nothing is named."""
        if not request.links and not request.switches:
            raise refuse("request", "links", "none is named, and no switch: name one of them")
        self._request = request
        self._out_since: int | None = None
        """An intent in which they are out of service, and have been since."""
        self._unused_since: int | None = None
        """The first plan from which on none used them."""

    def look(self, fabric: Fabric, intent: int, committed: Committed | None) -> pb.DrainProgress:
        """How far they are now.

        Args:
            fabric: As it is wanted.
            intent: Version of the intent, read no earlier than the fabric.
            committed: The newest plan, read no earlier than the version.

        Raises:
            InputError: a link or switch is not of the fabric.
        """
        wanted = self._request
        rows = link_rows(fabric, wanted.links, wanted.switches, "links", "switches")
        out = bool((fabric.effective[rows] != State.UP).all())
        self._out_since = (intent if self._out_since is None else self._out_since) if out else None
        if committed is None:
            return pb.DrainProgress(idle=out, planned=out)
        same = committed.plan.fabric.structure is fabric.structure
        planned = committed.plan.fabric
        over = flows_over(
            committed.plan,
            rows
            if same
            else link_rows(planned, wanted.links, wanted.switches, "links", "switches"),
            backups=True,
        )
        settled, unsettled = committed.settled()
        answers = self._out_since is not None and committed.answered_version >= self._out_since
        if len(over) or not answers:
            self._unused_since = None
        elif self._unused_since is None:
            self._unused_since = committed.generation
        since = self._unused_since
        idle = since is not None and settled >= since
        return pb.DrainProgress(
            generation=committed.generation,
            flow_count=len(over),
            settled_generation=settled,
            unsettled_switches=[] if idle else sorted(unsettled)[:NAMES_PER_ANSWER],
            idle=idle,
            unrouted_count=len(committed.plan.unrouted),
            planned=answers,
        )
