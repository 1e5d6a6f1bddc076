"""Our nftables table: what it contains, and how a packet passes it.

A packet without a mark is looked up in one map per shape of match that occurs, most exact first.
IPv4 and IPv6 have separate maps. The map gives the number of a group. A second map, ``ways``, turns
it into the mark by which `ip rule` sends the packet to the table of its next hop. The second step
makes local repair cheap: a group moves by changing one element of ``ways``, however many entries
use it. A group on the underlay has mark 0.

Packets from metered NICs (``metered``) that match no map are counted by pair, in ``unmatched``. The
method is "sample and hold" (Estan and Varghese, New Directions in Traffic Measurement and
Accounting, SIGCOMM 2002): one packet in ``SAMPLED`` gives its pair an element, and all packets of a
pair with an element are counted. So elephants soon have an element and few mice ever do, and an
element disappears when no packet of its pair has been sampled for a while. While no NIC is metered,
there are no such rules.

The table is readable when listed with `nft`, and ``notes`` has the names behind the numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import NamedTuple

from heddle_agent.fib.linux import nft
from heddle_agent.fib.linux.addresses import Family
from heddle_agent.fib.linux.nft import NETWORK, TRANSPORT, Transaction
from heddle_agent.fib.values import PAIRS_COUNTED
from heddle_agent.netlink import attribute, big, nest, text

WAYS, NOTES = "ways", "notes"
_STEER, _WAY = "steer", "way"
_PREROUTING, _PRIORITY = 0, -160  # before other chains at "mangle", after connection tracking's
_MAP, _TIMEOUT, _DYNAMIC = 0x8, 0x10, 0x20
_HELD_MILLISECONDS = 60_000  # longer than most intervals between reports
SAMPLED = 32
_IPV4_ADDRESS, _IPV6_ADDRESS, _PORT, _MARK_TYPE = 7, 8, 13, 19  # data types, as `nft` numbers them
_UDP = b"\x11"
_BYTE_ORDERS = struct.pack("=BBIBBI", 0, 4, 1, 1, 4, 1)  # user data: key, value in host order
_DATA_ORDER = struct.pack("=BBI", 1, 4, 1)


class Shape(NamedTuple):
    """The properties that matches of one map have in common."""

    family: Family
    source_port: bool
    """Whether the matches fix the source port; ``destination_port`` is alike."""
    destination_port: bool


class Field(NamedTuple):
    """A part of a packet that keys hold, in whole words of 4 bytes."""

    base: int
    offset: int
    length: int
    data_type: int
    words: tuple[int, ...]
    """The words of a full key that it fills. A full key is two addresses of 16 bytes, then two
    ports."""


class Layout(NamedTuple):
    """The name, shape and key fields of one map."""

    name: str
    shape: Shape
    fields: tuple[Field, ...]

    @property
    def words(self) -> tuple[int, ...]:
        """The words of a full key that its keys hold."""
        return tuple(word for field in self.fields for word in field.words)


SOURCE_PORT, DESTINATION_PORT = 8, 9
"""The words of the ports in a full key."""
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
"""All maps of entries, most exact first, which is the order of lookups."""


class Meter(NamedTuple):
    """The sets that count packets of one family that match no map."""

    metered: str
    """Name of the set of metered sources."""
    unmatched: Layout
    """The set of pairs."""


METERS = {
    family: Meter(
        f"metered{end}",
        Layout(f"unmatched{end}", Shape(family, False, False), _ADDRESSES[family]),
    )
    for family, end in ((Family.IPV4, ""), (Family.IPV6, "_ipv6"))
}
_NUMBER = Field(0, 0, 4, _MARK_TYPE, (0,))  # the number of a group, not a part of a packet


def create(transaction: Transaction) -> None:
    """Create table, maps and chains; what exists already stays."""
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
    """Create the sets that count unmatched packets, numbered from ``number`` on."""
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
    """Return the attributes of a map from keys of these fields to marks."""
    key_type = 0
    for field in fields:
        key_type = key_type << 6 | field.data_type
    value = (big(6, _MARK_TYPE), big(7, 4))
    key = (big(4, key_type), big(5, 4 * sum(len(field.words) for field in fields)))
    return text(2, name), big(3, _MAP), *key, *value, big(10, number), *more


def write_rules(
    transaction: Transaction, shapes: Collection[Shape], *, metered: Collection[Family] = ()
) -> None:
    """Replace all rules by those for matches of these shapes.

    In the families in ``metered``, rules are added that count what none of the shapes match.
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
    """Return a rule that looks a packet up in one map and sends it to its group's mark."""
    steps = _of_family(layout.shape.family)
    if layout.shape.source_port or layout.shape.destination_port:
        steps += [nft.load_protocol(), nft.compare(_UDP)]
    steps += _load(layout.fields)
    return [*steps, nft.look_up(layout.name), nft.store_mark(), nft.go_to(_WAY)]


def _of_family(family: Family) -> list[bytes]:
    """Return steps that continue the rule only for packets of a family."""
    return [nft.load_family(), nft.compare(bytes([family]))]


def _load(fields: tuple[Field, ...]) -> list[bytes]:
    """Return steps that load these fields side by side, from the first register on."""
    steps, word = [], 0
    for field in fields:
        steps.append(nft.load(field.base, field.offset, field.length, word))
        word += len(field.words)
    return steps
