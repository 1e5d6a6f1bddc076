"""Which links wait for routing when they come back."""

from __future__ import annotations

from heddle_agent.fib import Link
from heddle_agent.watch.routing import Routing

UPLINK, NIC, OTHER = (Link("leaf0", name, "0") for name in ("spine0", "nic0", "spine1"))
INDEXES = {UPLINK: 2, NIC: 3, OTHER: 4}


class Kernel:
    """A kernel that says which interfaces have routes, and counts how often it was asked."""

    def __init__(self, *routed: int) -> None:
        self.routed, self.asked = set(routed), 0
        self.silent = False

    def __call__(self, index: int) -> bool:
        """Return whether an interface has routes."""
        self.asked += 1
        if self.silent:
            raise OSError
        return index in self.routed


def test_only_links_that_routing_used_wait_for_it() -> None:
    """A NIC's link never has routes beyond it. An uplink waits until its routes are back."""
    kernel = Kernel(2, 4)
    routing = Routing(INDEXES, kernel)
    for _ in INDEXES:
        routing.look(INDEXES)
    assert [routing.lacks(link, index) for link, index in INDEXES.items()] == [False] * 3
    kernel.routed = {4}
    assert [routing.lacks(link, index) for link, index in INDEXES.items()] == [True, False, False]
    kernel.routed = {2, 4}
    assert not routing.lacks(UPLINK, 2)


def test_a_link_that_is_down_is_asked_about_later() -> None:
    """Whether routing uses a link can be seen only while it is up."""
    kernel = Kernel(2)
    routing = Routing(INDEXES, kernel)
    for _ in range(5):
        routing.look({NIC: 3})
    for _ in INDEXES:
        routing.look(INDEXES)
    kernel.routed = set()
    assert routing.lacks(UPLINK, 2)


def test_one_look_asks_about_no_more_links_than_it_must() -> None:
    """A look asks about at most one link without routes, because that reads all routes."""
    kernel = Kernel()
    routing = Routing(INDEXES, kernel)
    routing.look(INDEXES)
    assert kernel.asked == 1


def test_a_kernel_that_cannot_tell_holds_up_no_link() -> None:
    """A kernel that does not answer delays no link and does not count as routing using one."""
    kernel = Kernel(2)
    routing = Routing(INDEXES, kernel)
    kernel.silent = True
    routing.look(INDEXES)
    kernel.silent = False
    for _ in INDEXES:
        routing.look(INDEXES)
    kernel.silent = True
    assert not routing.lacks(UPLINK, 2)
