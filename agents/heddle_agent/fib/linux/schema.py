"""Our nftables table: what is in it, and how a packet passes it.

A packet that nobody has marked is looked for in one map for each shape of match that occurs, most
exact first. The map gives the number of a group; a second map, ``ways``, turns it into the mark by
which `ip rule` sends the packet to the table of its next hop. That second step is what makes local
repair cheap: a group moves by one element of ``ways``, however many entries point at it. A group
on the underlay has mark 0.

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
from typing import NamedTuple, TypeAlias

from heddle_agent.fib.linux import nft
from heddle_agent.fib.linux.netlink import attribute, big, nest, text
from heddle_agent.fib.linux.nft import FIRST, NETWORK, SECOND, TRANSPORT, Transaction
from heddle_agent.fib.values import PAIRS_COUNTED

WAYS, NOTES, METERED, UNMATCHED = "ways", "notes", "metered", "unmatched"
_STEER, _WAY = "steer", "way"
_PREROUTING, _PRIORITY = 0, -160  # before other chains at "mangle", after connection tracking's
_MAP, _TIMEOUT, _DYNAMIC = 0x8, 0x10, 0x20
_HELD_MILLISECONDS = 60_000  # longer than most intervals between reports
SAMPLED = 32
_ADDRESS, _PORT, _MARK_TYPE = 7, 13, 19  # data types, as `nft` numbers them
_UDP = b"\x11"
_BYTE_ORDERS = struct.pack("=BBIBBI", 0, 4, 1, 1, 4, 1)  # user data: the machine's own, twice
_DATA_ORDER = struct.pack("=BBI", 1, 4, 1)


Shape: TypeAlias = tuple[bool, bool]
"""Whether a match fixes its source port and its destination port."""


class Layout(NamedTuple):
    """The map of one shape."""

    name: str
    shape: Shape
    words: tuple[int, ...]
    """Which of the four words of a full key its keys hold."""


LAYOUTS = (
    Layout("flows", (True, True), (0, 1, 2, 3)),
    Layout("by_source_port", (True, False), (0, 1, 2)),
    Layout("by_destination_port", (False, True), (0, 1, 3)),
    Layout("pairs", (False, False), (0, 1)),
)
"""Most exact first: the order in which they are asked."""
PAIRS = Layout(UNMATCHED, (False, False), (0, 1))
_FIELDS = (  # base, offset, length and data type of each word
    (NETWORK, 12, 4, _ADDRESS),
    (NETWORK, 16, 4, _ADDRESS),
    (TRANSPORT, 0, 2, _PORT),
    (TRANSPORT, 2, 2, _PORT),
)


def create(transaction: Transaction) -> None:
    """Table, maps and chains as they should be; what is there already stays."""
    transaction.add(nft.NEW_TABLE, big(2, 0))
    counter = nest(17, text(1, "counter"), nest(2))
    for number, layout in enumerate(LAYOUTS, 1):
        types = tuple(_FIELDS[word][3] for word in layout.words)
        orders = attribute(13, _DATA_ORDER)
        transaction.add(nft.NEW_SET, *_map(layout.name, number, types, orders, counter))
    orders = attribute(13, _BYTE_ORDERS)
    transaction.add(nft.NEW_SET, *_map(WAYS, 5, (_MARK_TYPE,), orders))
    transaction.add(
        nft.NEW_SET,
        text(2, NOTES),
        big(3, 0),
        big(4, _MARK_TYPE << 6 | _MARK_TYPE),
        big(5, 8),
        big(10, 6),
    )
    transaction.add(
        nft.NEW_SET, text(2, METERED), big(3, 0), big(4, _ADDRESS), big(5, 4), big(10, 7)
    )
    transaction.add(
        nft.NEW_SET,
        text(2, UNMATCHED),
        big(3, _TIMEOUT | _DYNAMIC),
        big(4, _ADDRESS << 6 | _ADDRESS),
        big(5, 8),
        nest(9, big(1, PAIRS_COUNTED)),
        big(10, 8),
        attribute(11, _HELD_MILLISECONDS.to_bytes(8, "big")),
        counter,
    )
    transaction.add(nft.NEW_CHAIN, text(3, _WAY))
    hook = nest(4, big(1, _PREROUTING), big(2, _PRIORITY & 0xFFFFFFFF))
    transaction.add(nft.NEW_CHAIN, text(3, _STEER), text(7, "filter"), big(5, 1), hook)


def _map(name: str, number: int, words: tuple[int, ...], *more: bytes) -> tuple[bytes, ...]:
    """A map from keys of these data types to marks."""
    key_type = 0
    for word in words:
        key_type = key_type << 6 | word
    value = (big(6, _MARK_TYPE), big(7, 4))
    key = (big(4, key_type), big(5, 4 * len(words)))
    return text(2, name), big(3, _MAP), *key, *value, big(10, number), *more


def write_rules(
    transaction: Transaction, shapes: Collection[Shape], *, metered: bool = False
) -> None:
    """The rules for matches of these shapes, in place of those there are.

    With ``metered``, also those that count what none of these match.
    """
    for chain in (_STEER, _WAY):
        transaction.add(nft.DELETE_RULE, text(2, chain), flags=0)
    unmarked = bytes(4)
    nft.rule(transaction, _STEER, nft.load_mark(), nft.compare(unmarked, equal=False), nft.accept())
    for layout in LAYOUTS:
        if layout.shape in shapes:
            nft.rule(transaction, _STEER, *_ask(layout))
    if metered:
        sampled = (nft.draw(SAMPLED), nft.compare(bytes(4)), *_load((0,)), nft.is_in(METERED))
        pair = _load(PAIRS.words)
        nft.rule(transaction, _STEER, *sampled, *pair, nft.keep(UNMATCHED), nft.accept())
        nft.rule(transaction, _STEER, *pair, nft.is_in(UNMATCHED), nft.accept())
    nft.rule(transaction, _WAY, nft.load_mark(), nft.look_up(WAYS), nft.store_mark(), nft.accept())
    nft.rule(transaction, _WAY, nft.constant(unmarked), nft.store_mark())


def _ask(layout: Layout) -> list[bytes]:
    """Look a packet up in one map; what is found goes on to its group's way."""
    steps = []
    if any(layout.shape):
        steps += [nft.load(NETWORK, 9, 1, FIRST), nft.compare(_UDP)]
    steps += _load(layout.words)
    return [*steps, nft.look_up(layout.name), nft.store_mark(), nft.go_to(_WAY)]


def _load(words: tuple[int, ...]) -> list[bytes]:
    """These words of the packet's key, side by side from the first register on."""
    steps = []
    for row, word in enumerate(words):
        base, offset, length, _ = _FIELDS[word]
        steps.append(nft.load(base, offset, length, FIRST if row == 0 else SECOND + row - 1))
    return steps
