"""Take everything of ours off a box: on request only, never when an agent starts or ends.

First the nftables table goes, and with it every mark: from then on all packets are the underlay's,
and what is removed afterwards nobody uses. Then rules, then routes; last the one setting of
interfaces that we changed, which the notes of the table have told us before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from heddle_agent.fib.linux import detours, elements, nft, rtnetlink, schema
from heddle_agent.fib.linux.kernel import Kernel, open_socket
from heddle_agent.fib.linux.netlink import KernelError, Netlink, Opener
from heddle_agent.fib.linux.nft import RefusedError, Transaction
from heddle_agent.fib.linux.notes import NoteKind, Notes


class Removed(NamedTuple):
    """What was there and is not any more."""

    entries: int
    rules: int
    routes: int
    interfaces: int
    """Interfaces that no longer ignore routes without carrier, as before us."""


def clean_kernel(opener: Opener = open_socket) -> Removed:
    """Remove every trace of the linux backend from a network namespace.

    UnavailableError if this machine has none; KernelError if the kernel does not let us.
    """
    kernel = Kernel(opener)
    try:
        entries, changed = _table(kernel) if kernel.has_table() else (0, {})
        rules = list(rtnetlink.our_rules(kernel.routes))
        routes = list(rtnetlink.our_routes(kernel.routes))
        present = rtnetlink.interfaces_by_name(kernel.routes)
        back = [number for number, name in changed.items() if _same(present.get(name), number)]
        _all(kernel.routes, [rtnetlink.change_rule(rule, add=False) for rule in rules])
        _all(kernel.routes, [rtnetlink.delete_route(place) for place in routes])
        around = detours.remove_detours(kernel.routes)
        _all(kernel.routes, [rtnetlink.ignore_linkdown(number, on=False) for number in back])
    finally:
        kernel.close()
    return Removed(entries, len(rules), len(routes) + around, len(back))


def _table(kernel: Kernel) -> tuple[int, Mapping[int, str]]:
    """Remove our nftables table; entries that it had, and interfaces that it remembered."""
    entries, notes = 0, Notes()
    try:
        for layout in schema.LAYOUTS:
            found = elements.parse_map_elements(layout, nft.ask_elements(kernel.nft, layout.name))
            entries += len(found.keys)
        notes.load(nft.ask_elements(kernel.nft, schema.NOTES))
    except KernelError:
        pass  # a table of our name and another layout: it goes all the same
    transaction = Transaction()
    transaction.add(nft.DELETE_TABLE, flags=0)
    try:
        transaction.commit(kernel.nft)
    except RefusedError as refused:
        raise refused.error from refused
    return entries, notes.of(NoteKind.INTERFACE)


def _same(interface: rtnetlink.Interface | None, number: int) -> bool:
    return interface is not None and interface.number == number


def _all(kernel: Netlink, requests: list[rtnetlink.Request]) -> None:
    for error in rtnetlink.ask(kernel, requests):
        if error is not None:
            raise error
