"""Removes everything of the backend from a machine, only on request.

The nftables table is removed first, and with it every mark. From then on all packets follow the
underlay, and nothing uses what is removed afterwards. Rules, routes and our one setting of
interfaces follow, which was read from the table's notes before. Somebody who removes the table
removes the notes too. Then nothing says whether that setting is ours or an administrator's, so it
stays, and the caller is told.
"""

from __future__ import annotations

from typing import NamedTuple

from heddle_agent.fib.linux import detours, elements, nft, rtnetlink, schema
from heddle_agent.fib.linux.addresses import Family
from heddle_agent.fib.linux.kernel import Kernel
from heddle_agent.fib.linux.nft import RefusedError, Transaction
from heddle_agent.fib.linux.notes import NoteKind, Notes
from heddle_agent.netlink import KernelError, Netlink, Opener, open_socket


class Removed(NamedTuple):
    """Numbers of things that were removed."""

    entries: int
    rules: int
    routes: int
    interfaces: int
    """Interfaces whose setting ignore_routes_with_linkdown was switched off again."""
    unclear: tuple[str, ...]
    """Interfaces of our routes with this setting on, if no note says who switched it on."""


def clean_kernel(opener: Opener = open_socket) -> Removed:
    """Remove every trace of the Linux backend from a network namespace.

    Raises UnavailableError if the kernel cannot be used, and KernelError if it refuses.
    """
    kernel = Kernel(opener)
    try:
        entries, notes = _table(kernel) if kernel.has_table() else (0, Notes())
        changed = notes.of(NoteKind.INTERFACE)
        rules = list(rtnetlink.our_rules(kernel.routes))
        routes = rtnetlink.our_routes(kernel.routes)
        present = rtnetlink.interfaces_by_name(kernel.routes)
        unclear = set() if notes.of(NoteKind.HOP) else set(routes.values())
        back = [number for number, name in changed.items() if _same(present.get(name), number)]
        _all(kernel.routes, [rtnetlink.change_rule(rule, add=False) for rule in rules])
        _all(kernel.routes, [rtnetlink.delete_route(place) for place in routes])
        around = detours.remove_detours(kernel.routes)
        _all(kernel.routes, [rtnetlink.ignore_linkdown(number, on=False) for number in back])
    finally:
        kernel.close()
    named = sorted(
        one.name
        for one in present.values()
        if one.number in unclear and Family.IPV4 in one.ignores_linkdown
    )
    return Removed(entries, len(rules), len(routes) + around, len(back), tuple(named))


def _table(kernel: Kernel) -> tuple[int, Notes]:
    """Remove our nftables table; return its number of entries, and its notes."""
    entries, notes = 0, Notes()
    try:
        for layout in schema.LAYOUTS:
            found = elements.parse_map_elements(layout, nft.ask_elements(kernel.nft, layout.name))
            entries += len(found.keys)
        notes.load(nft.ask_elements(kernel.nft, schema.NOTES))
    except KernelError:
        pass  # a table with our name and another layout is removed as well
    transaction = Transaction()
    transaction.add(nft.DELETE_TABLE, flags=0)
    try:
        transaction.commit(kernel.nft)
    except RefusedError as refused:
        raise refused.error from refused
    return entries, notes


def _same(interface: rtnetlink.Interface | None, number: int) -> bool:
    return interface is not None and interface.number == number


def _all(kernel: Netlink, requests: list[rtnetlink.Request]) -> None:
    for error in rtnetlink.ask(kernel, requests):
        if error is not None:
            raise error
