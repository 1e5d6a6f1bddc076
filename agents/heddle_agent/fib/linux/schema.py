"""Our nftables table: what is in it, and how a packet passes it.

A packet that nobody has marked is looked for in one map for each shape of match that occurs, most
exact first; IPv4 and IPv6 have maps of their own. The map gives the number of a group; a second
map, ``ways``, turns it into the mark by which `ip rule` sends the packet to the table of its next
hop. That second step is what makes local repair cheap: a group moves by one element of ``ways``,
however many entries point at it. A group on the underlay has mark 0.

Packets of metered NICs (``metered``) that no map has are counted by pair, in ``unmatched``. That is
"sample and hold" (Estan and Varghese, New Directions in Traffic Measurement and Accounting, SIGCOMM
2002): one packet in ``SAMPLED`` gives its pair an element, and all packets of a pair that has one
are counted. So elephants have one soon, few mice ever do, and an element that no packet was sampled
for lately goes by itself. While nobody is metered, there are no such rules.

Whoever lists the table with `nft` finds it readable, and in ``notes`` the names behind the numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import NamedTuple

from heddle_agent.fib.linux import nft
from heddle_agent.fib.linux.addresses import Family
from heddle_agent.fib.linux.netlink import attribute, big, nest, text
from heddle_agent.fib.linux.nft import NETWORK, TRANSPORT, Transaction
from heddle_agent.fib.values import PAIRS_COUNTED

WAYS, NOTES = "ways", "notes"
_STEER, _WAY = "steer", "way"
_PREROUTING, _PRIORITY = 0, -160  # before other chains at "mangle", after connection tracking's
_MAP, _TIMEOUT, _DYNAMIC = 0x8, 0x10, 0x20
_HELD_MILLISECONDS = 60_000  # longer than most intervals between reports
SAMPLED = 32
_IPV4_ADDRESS, _IPV6_ADDRESS, _PORT, _MARK_TYPE = 7, 8, 13, 19  # data types, as `nft` numbers them
_UDP = b"\x11"
_BYTE_ORDERS = struct.pack("=BBIBBI", 0, 4, 1, 1, 4, 1)  # user data: the machine's own, twice
_DATA_ORDER = struct.pack("=BBI", 1, 4, 1)


class Shape(NamedTuple):
    """What tells apart the matches that are in one map."""

    family: Family
    source_port: bool
    """Whether they fix it; so with the other."""
    destination_port: bool


class Field(NamedTuple):
    """A part of a packet that a key holds, in whole words of 4 bytes."""

    base: int
    offset: int
    length: int
    data_type: int
    words: tuple[int, ...]
    """Which words of a full key these are: two addresses of 16 bytes, then two ports."""


class Layout(NamedTuple):
    """The map of one shape."""

    name: str
    shape: Shape
    fields: tuple[Field, ...]

    @property
    def words(self) -> tuple[int, ...]:
        """Which words of a full key its keys hold."""
        return tuple(word for field in self.fields for word in field.words)


SOURCE_PORT, DESTINATION_PORT = 8, 9
"""Their words in a full key."""
_ADDRESSES = {
    Family.IPV4: (
        Field(NETWORK, 12, 4, _IPV4_ADDRESS, (3,)),
        Field(NETWORK, 16, 4, _IPV4_ADDRESS, (7,)),
    ),
    Family.IPV6: (
        Field(NETWORK, 8, 16, _IPV6_ADDRESS, (0, 1, 2, 3)),
        Field(NETWORK, 24, 16, _IPV6_ADDRESS, (4, 5, 6, 7)),
    ),
}
_PORTS = (
    Field(TRANSPORT, 0, 2, _PORT, (SOURCE_PORT,)),
    Field(TRANSPORT, 2, 2, _PORT, (DESTINATION_PORT,)),
)
LAYOUTS = tuple(
    Layout(
        name + end,
        Shape(family, source, destination),
        (*_ADDRESSES[family], *_PORTS[:source], *_PORTS[1 : 1 + destination]),
    )
    for family, end in ((Family.IPV4, ""), (Family.IPV6, "_ipv6"))
    for name, source, destination in (
        ("flows", True, True),
        ("by_source_port", True, False),
        ("by_destination_port", False, True),
        ("pairs", False, False),
    )
)
"""Most exact first: the order in which they are asked."""


class Meter(NamedTuple):
    """What counts packets of one family that no map has."""

    metered: str
    """The set of the sources that are counted."""
    unmatched: Layout
    """The set of pairs."""


METERS = {
    family: Meter(
        f"metered{end}",
        Layout(f"unmatched{end}", Shape(family, False, False), _ADDRESSES[family]),
    )
    for family, end in ((Family.IPV4, ""), (Family.IPV6, "_ipv6"))
}
_NUMBER = Field(0, 0, 4, _MARK_TYPE, (0,))  # of a group; from no packet


def create(transaction: Transaction) -> None:
    """Table, maps and chains as they should be; what is there already stays."""
    transaction.add(nft.NEW_TABLE, big(2, 0))
    counter = nest(17, text(1, "counter"), nest(2))
    for number, layout in enumerate(LAYOUTS, 1):
        orders = attribute(13, _DATA_ORDER)
        transaction.add(nft.NEW_SET, *_map(layout.name, number, layout.fields, orders, counter))
    orders = attribute(13, _BYTE_ORDERS)
    transaction.add(nft.NEW_SET, *_map(WAYS, len(LAYOUTS) + 1, (_NUMBER,), orders))
    _create_meters(transaction, len(LAYOUTS) + 3, counter)
    transaction.add(
        nft.NEW_SET,
        text(2, NOTES),
        big(3, 0),
        big(4, _MARK_TYPE << 6 | _MARK_TYPE),
        big(5, 8),
        big(10, len(LAYOUTS) + 2),
    )
    transaction.add(nft.NEW_CHAIN, text(3, _WAY))
    hook = nest(4, big(1, _PREROUTING), big(2, _PRIORITY & 0xFFFFFFFF))
    transaction.add(nft.NEW_CHAIN, text(3, _STEER), text(7, "filter"), big(5, 1), hook)


def _create_meters(transaction: Transaction, number: int, counter: bytes) -> None:
    """The sets of what is counted without an entry; ``number`` is free from here on."""
    for place, (metered, pairs) in enumerate(METERS.values()):
        address = pairs.fields[0]
        transaction.add(
            nft.NEW_SET,
            text(2, metered),
            big(3, 0),
            big(4, address.data_type),
            big(5, address.length),
            big(10, number + 2 * place),
        )
        transaction.add(
            nft.NEW_SET,
            text(2, pairs.name),
            big(3, _TIMEOUT | _DYNAMIC),
            big(4, address.data_type << 6 | address.data_type),
            big(5, 2 * address.length),
            nest(9, big(1, PAIRS_COUNTED)),
            big(10, number + 2 * place + 1),
            attribute(11, _HELD_MILLISECONDS.to_bytes(8, "big")),
            counter,
        )


def _map(name: str, number: int, fields: tuple[Field, ...], *more: bytes) -> tuple[bytes, ...]:
    """A map from keys of these fields to marks."""
    key_type = 0
    for field in fields:
        key_type = key_type << 6 | field.data_type
    value = (big(6, _MARK_TYPE), big(7, 4))
    key = (big(4, key_type), big(5, 4 * sum(len(field.words) for field in fields)))
    return text(2, name), big(3, _MAP), *key, *value, big(10, number), *more


def write_rules(
    transaction: Transaction, shapes: Collection[Shape], *, metered: Collection[Family] = ()
) -> None:
    """The rules for matches of these shapes, in place of those there are.

    And those that count what none of these match, in the families that are ``metered``.
    """
    for chain in (_STEER, _WAY):
        transaction.add(nft.DELETE_NFT_RULE, text(2, chain), flags=0)
    unmarked = bytes(4)
    nft.rule(transaction, _STEER, nft.load_mark(), nft.compare(unmarked, equal=False), nft.accept())
    for layout in LAYOUTS:
        if layout.shape in shapes:
            nft.rule(transaction, _STEER, *_ask(layout))
    for family in metered:
        metered_set, pairs = METERS[family]
        ours, load = _of_family(family), _load(pairs.fields)
        sampled = (nft.draw(SAMPLED), nft.compare(bytes(4)), *_load(pairs.fields[:1]))
        held = (*load, nft.keep(pairs.name), nft.accept())
        nft.rule(transaction, _STEER, *ours, *sampled, nft.is_in(metered_set), *held)
        nft.rule(transaction, _STEER, *ours, *load, nft.is_in(pairs.name), nft.accept())
    nft.rule(transaction, _WAY, nft.load_mark(), nft.look_up(WAYS), nft.store_mark(), nft.accept())
    nft.rule(transaction, _WAY, nft.constant(unmarked), nft.store_mark())


def _ask(layout: Layout) -> list[bytes]:
    """Look a packet up in one map; what is found goes on to its group's way."""
    steps = _of_family(layout.shape.family)
    if layout.shape.source_port or layout.shape.destination_port:
        steps += [nft.load_protocol(), nft.compare(_UDP)]
    steps += _load(layout.fields)
    return [*steps, nft.look_up(layout.name), nft.store_mark(), nft.go_to(_WAY)]


def _of_family(family: Family) -> list[bytes]:
    """Go on with the rule only for packets of a family."""
    return [nft.load_family(), nft.compare(bytes([family]))]


def _load(fields: tuple[Field, ...]) -> list[bytes]:
    """These fields of the packet, side by side from the first register on."""
    steps, word = [], 0
    for field in fields:
        steps.append(nft.load(field.base, field.offset, field.length, word))
        word += len(field.words)
    return steps
