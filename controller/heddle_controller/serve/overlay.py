"""OverlayService: the panic switch, wanted in the store and told to agents beside this."""

from __future__ import annotations

from typing import Any

from grpc import aio
from typing_extensions import override

from heddle.v1 import overlay_pb2 as pb
from heddle.v1.overlay_pb2_grpc import OverlayServiceServicer
from heddle_controller.model.errors import refuse
from heddle_controller.reconcile.ports import FabricStore
from heddle_controller.serve.agents.overlays import OverlayBook
from heddle_controller.serve.codec import common, names
from heddle_controller.serve.request import request_of
from heddle_controller.state.records import FabricSummary

_Context = aio.ServicerContext[Any, Any]

MAX_FAILURES = 100


class OverlayService(OverlayServiceServicer):
    """Writes the flag; says how many agents have it, as the book knows. See overlay.proto."""

    def __init__(self, store: FabricStore, book: OverlayBook) -> None:
        self._store = store
        self._book = book

    @override
    async def SetOverlay(self, request: pb.SetOverlayRequest, context: _Context) -> pb.Overlay:
        """Agents are told before the answer; what they make of it, ``GetOverlay`` says."""
        fabric = names.parse_overlay(request.name, "name")
        if request.state not in (pb.OVERLAY_STATE_ACTIVE, pb.OVERLAY_STATE_WITHDRAWN):
            cure = "use OVERLAY_STATE_ACTIVE or OVERLAY_STATE_WITHDRAWN"
            raise refuse("request", "state", f"it is missing or unknown: {cure}")
        summary = await self._store.set_overlay(
            fabric,
            withdrawn=request.state == pb.OVERLAY_STATE_WITHDRAWN,
            request=request_of(request.request_id),
        )
        self._book.spread(fabric, (await self._store.get_fabric(fabric)).overlay)
        return self._told(summary)

    @override
    async def GetOverlay(self, request: pb.GetOverlayRequest, context: _Context) -> pb.Overlay:
        """As stored, and as agents of this controller say."""
        fabric = names.parse_overlay(request.name, "name")
        return self._told((await self._store.get_fabric(fabric)).summary())

    def _told(self, summary: FabricSummary) -> pb.Overlay:
        wanted = summary.overlay
        standing = self._book.standing(summary.name, withdrawn=wanted.withdrawn)
        states = pb.OVERLAY_STATE_WITHDRAWN, pb.OVERLAY_STATE_ACTIVE
        answer = pb.Overlay(
            name=names.overlay_name(summary.name),
            state=states[0] if wanted.withdrawn else states[1],
            agent_count=standing.agents,
            obeying_count=standing.obeying,
            failures=[
                pb.OverlayFailure(switch=switch, message=message)
                for switch, message in standing.failures[:MAX_FAILURES]
            ],
        )
        if wanted.time:
            answer.state_time.CopyFrom(common.time_to_pb(wanted.time))
        return answer
