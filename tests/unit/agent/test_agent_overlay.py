"""How an agent carries out orders to withdraw or restore the overlay."""

from __future__ import annotations

from heddle.v1 import agent_pb2 as pb
from heddle_agent.table import Fence
from tests.support.agent_controllers import Controller, Stream, listening, wire_push
from tests.support.agent_worlds import entry, forwarding, match, push, take
from tests.support.waiting import until
from tests.unit.agent.test_agent_session import ENTRY, running


def test_an_order_of_an_older_epoch_is_not_obeyed() -> None:
    """The fence of pushes holds for orders too. An order of the same or a later epoch is obeyed."""
    switch = forwarding(fence=Fence(5, 1))
    stood = []
    for withdrawn, epoch in ((True, 4), (True, 5), (False, 4), (False, 6)):
        why = switch.set_overlay(withdrawn=withdrawn, epoch=epoch)
        assert bool(why) == (epoch < 5)
        stood.append(switch.fib.withdrawn)
    assert stood == [False, True, True, False]


def test_what_is_held_is_told_as_before() -> None:
    """Withdrawing the overlay changes neither the digest nor the entries that are reported."""
    switch = forwarding()
    take(switch, push([(match(0), entry(0, 1))]))
    before = (switch.digest(), switch.held)
    switch.set_overlay(withdrawn=True, epoch=1)
    assert (switch.digest(), switch.held) == before


async def order(stream: Stream, *, withdrawn: bool, epoch: int = 1) -> None:
    """Send an order to withdraw or restore the overlay."""
    message = pb.OverlayOrder(withdrawn=withdrawn, epoch=epoch)
    await stream.context.write(pb.ControllerMessage(overlay=message))


async def told(stream: Stream, count: int) -> list[pb.OverlayReport]:
    """Wait until this many reports have come, and return them."""
    reports: list[pb.OverlayReport] = []

    def enough() -> bool:
        reports[:] = [m.overlay for m in stream.received if m.HasField("overlay")]
        return len(reports) >= count

    await until(enough, f"{count} reports")
    return reports


async def test_orders_in_a_session() -> None:
    """Each order is answered with the state of the switch, and pushes go on meanwhile."""
    controller = Controller()
    async with listening(controller), running(controller.address) as one:
        stream = await controller.stream()
        assert not stream.parameters.overlay_withdrawn
        await stream.push(wire_push(ENTRY))
        await stream.acked()
        hashed = {"spine2", "spine3"}
        assert one.leaves() == "spine0"
        await order(stream, withdrawn=True)
        assert [r.withdrawn for r in await told(stream, 1)] == [True]
        assert one.leaves() in hashed
        await stream.push(wire_push(ENTRY, generation=2, nonce=2))
        await stream.acked(2)
        assert one.leaves() in hashed
        await order(stream, withdrawn=False, epoch=0)
        refused = (await told(stream, 2))[-1]
        assert (refused.withdrawn, "epoch 0" in refused.message) == (True, True)
        await order(stream, withdrawn=False)
        assert [r.withdrawn for r in await told(stream, 3)] == [True, True, False]
        assert one.leaves() == "spine0"


async def test_the_next_session_says_how_the_switch_stands() -> None:
    """A new session reports the state, so a controller orders only what differs."""
    controller = Controller()
    async with listening(controller), running(controller.address):
        first = await controller.stream()
        await order(first, withdrawn=True)
        await told(first, 1)
        first.closing.set()
        again = await controller.stream(1)
        assert again.parameters.overlay_withdrawn
