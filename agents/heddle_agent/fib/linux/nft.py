"""nftables on the wire: transactions, and the few expressions that our rules use.

A transaction is one datagram, which the kernel accepts as a whole or not at all. It numbers its
messages and remembers which elements each contains, so that a refusal can be traced to one element.
The kernel echoes removed elements with their last counters, because counters read beforehand would
be out of date.
"""

from __future__ import annotations

import errno
import os
import struct
from typing import NamedTuple

from heddle_agent.netlink import (
    ACK,
    APPEND,
    CREATE,
    ECHO,
    NESTED,
    NETFILTER,
    REQUEST,
    KernelError,
    Message,
    Netlink,
    Opener,
    attribute,
    big,
    framed,
    messages,
    nest,
    text,
)

_TABLE = "heddle"

_SUBSYSTEM = 10 << 8
NEW_TABLE, DELETE_TABLE = _SUBSYSTEM | 0, _SUBSYSTEM | 2
NEW_CHAIN = _SUBSYSTEM | 3
NEW_NFT_RULE, DELETE_NFT_RULE = _SUBSYSTEM | 6, _SUBSYSTEM | 8
NEW_SET, GET_SET = _SUBSYSTEM | 9, _SUBSYSTEM | 10
NEW_ELEMENTS, GET_ELEMENTS, DELETE_ELEMENTS = _SUBSYSTEM | 12, _SUBSYSTEM | 13, _SUBSYSTEM | 14
GET_GENERATION = _SUBSYSTEM | 16
_BEGIN, _END = 16, 17

_INET = 1  # both IPv4 and IPv6 packets
_FAMILY = struct.pack("=BBH", _INET, 0, 0)
_BATCH = struct.pack(">BBH", 0, 0, 10)
_ELEMENTS_BYTES = 60_000  # a list may have 65,535 bytes; elements are not cut
_LIST = struct.Struct("=HH")
_MARK, _NETWORK_FAMILY, _TRANSPORT_PROTOCOL = 3, 15, 16  # keys of meta expressions
_RANDOM, _UPDATE = 1, 1
_ACCEPT, _GOTO = 1, 0xFFFFFFFC
FIRST = 1  # a 16-byte register, the same as the first four 4-byte registers
_FIRST_WORD = 8
NETWORK, TRANSPORT = 1, 2


class Part(NamedTuple):
    """What one message of a transaction contains, to interpret its refusal."""

    name: str
    """Set of its elements; empty for other messages."""
    first: int
    """Index of its first element among those passed in one call."""
    size: int
    """Size of one element in bytes; 0 if sizes differ."""
    head: int
    """Number of bytes before its first element."""
    delete: bool


class RefusedError(Exception):
    """The kernel refused a transaction; nothing of it took effect."""

    def __init__(self, error: KernelError, part: Part | None) -> None:
        super().__init__(str(error))
        self.error = error
        self.part = part

    @property
    def element(self) -> int | None:
        """Index of the element at fault, None if the kernel did not tell."""
        part, offset = self.part, self.error.offset
        if part is None or not part.size or offset < part.head:
            return None
        return part.first + (offset - part.head) // part.size


class Transaction:
    """Messages that take effect together."""

    def __init__(self) -> None:
        self._messages: list[tuple[int, int, bytes]] = []
        self._parts: list[Part | None] = []

    def __bool__(self) -> bool:
        return bool(self._messages)

    def add(self, kind: int, *values: bytes, flags: int = CREATE) -> None:
        """Add a message about our table, whose name comes first in each message."""
        self._messages.append((kind, flags, b"".join((_FAMILY, text(1, _TABLE), *values))))
        self._parts.append(None)

    def elements(self, name: str, packed: bytes, size: int, *, delete: bool = False) -> None:
        """Add or delete elements of ``size`` bytes each, in as many messages as needed."""
        step = max(_ELEMENTS_BYTES // size, 1) * size
        for start in range(0, len(packed), step):
            self._list(name, packed[start : start + step], start // size, size, delete=delete)

    def various(self, name: str, packed: list[bytes], *, delete: bool = False) -> None:
        """Add or delete elements of different sizes."""
        waiting: list[bytes] = []
        room = _ELEMENTS_BYTES
        for element in packed:
            if len(element) > room:
                self._list(name, b"".join(waiting), 0, 0, delete=delete)
                waiting, room = [], _ELEMENTS_BYTES
            waiting.append(element)
            room -= len(element)
        if waiting:
            self._list(name, b"".join(waiting), 0, 0, delete=delete)

    def _list(self, name: str, packed: bytes, first: int, size: int, *, delete: bool) -> None:
        head = b"".join((_FAMILY, text(1, _TABLE), text(2, name)))
        body = head + _LIST.pack(4 + len(packed), 3 | NESTED) + packed
        kind, flags = (DELETE_ELEMENTS, ECHO if size else 0) if delete else (NEW_ELEMENTS, CREATE)
        self._messages.append((kind, flags, body))
        self._parts.append(Part(name, first, size, 16 + len(head) + 4, delete))

    def commit(self, kernel: Netlink) -> list[bytes]:
        """Send the transaction and return what the kernel echoes; RefusedError if it refuses."""
        if not self._messages:
            return []
        frames = [framed(_BEGIN, REQUEST, kernel.number(), _BATCH)]
        numbers = {}
        last = len(self._messages) - 1
        for row, (kind, flags, body) in enumerate(self._messages):
            sequence = kernel.number()
            numbers[sequence] = self._parts[row]
            asked = flags | REQUEST | (ACK if row == last else 0)
            frames.append(framed(kind, asked, sequence, body))
        frames.append(framed(_END, REQUEST, kernel.number(), _BATCH))
        try:
            answers, errors = kernel.send([b"".join(frames)])
        except OSError as error:
            raise RefusedError(KernelError(error.errno or 0, str(error)), None) from error
        if errors:
            raise RefusedError(errors[0], numbers.get(errors[0].sequence))
        return answers


def open_nft(opener: Opener) -> Netlink:
    """Open a socket to nftables."""
    return Netlink(NETFILTER, opener)


def ask_elements(kernel: Netlink, name: str) -> list[bytes]:
    """Return the datagrams of a dump of a set."""
    return list(kernel.dump(GET_ELEMENTS, _FAMILY + text(1, _TABLE) + text(2, name)))


def ask_sets(kernel: Netlink) -> list[Message]:
    """Return all sets of our table.

    Without such a table, the result is empty or KernelError (ENOENT) is raised.
    """
    from_kernel = kernel.dump(GET_SET, _FAMILY + text(1, _TABLE))
    return [message for data in from_kernel for message in messages(data)]


def ask_generation(kernel: Netlink) -> int:
    """Return a number that grows with every transaction, ours or others'.

    Raises OSError if the kernel does not answer.
    """
    for answer in kernel.get(GET_GENERATION, _FAMILY):
        return int.from_bytes(answer.body[8:12], "big")
    raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))


def expression(name: str, *values: bytes) -> bytes:
    """Encode one step of a rule."""
    return nest(1, text(1, name), nest(2, *values))


def load(base: int, offset: int, length: int, word: int) -> bytes:
    """Load bytes of the packet into 4-byte registers, from register ``word`` on."""
    register = big(1, _FIRST_WORD + word)
    return expression("payload", register, big(2, base), big(3, offset), big(4, length))


def load_family() -> bytes:
    """Load the packet's family into the first register, as one byte."""
    return expression("meta", big(2, _NETWORK_FAMILY), big(1, FIRST))


def load_protocol() -> bytes:
    """Load the packet's transport protocol into the first register, as one byte."""
    return expression("meta", big(2, _TRANSPORT_PROTOCOL), big(1, FIRST))


def compare(value: bytes, *, equal: bool = True) -> bytes:
    """Continue the rule only if the first register holds ``value``, or does not."""
    return expression("cmp", big(1, FIRST), big(2, 0 if equal else 1), nest(3, attribute(1, value)))


def look_up(name: str) -> bytes:
    """Replace the key in the first register by its value; without an element the rule ends."""
    return expression("lookup", big(2, FIRST), big(3, FIRST), text(1, name), big(4, 1))


def draw(modulus: int) -> bytes:
    """Load a random number below ``modulus`` into the first register."""
    return expression("numgen", big(1, FIRST), big(2, modulus), big(3, _RANDOM))


def is_in(name: str) -> bytes:
    """Continue the rule only if the first register is an element; this counts the packet."""
    return expression("lookup", big(2, FIRST), text(1, name))


def keep(name: str) -> bytes:
    """Add the first register as an element, or renew its timeout; if full, the rule ends."""
    return expression("dynset", text(1, name), big(3, _UPDATE), big(4, FIRST))


def load_mark() -> bytes:
    """Load the packet's mark into the first register."""
    return expression("meta", big(2, _MARK), big(1, FIRST))


def store_mark() -> bytes:
    """Store the first register as the packet's mark."""
    return expression("meta", big(2, _MARK), big(3, FIRST))


def constant(value: bytes) -> bytes:
    """Load a constant into the first register."""
    return expression("immediate", big(1, FIRST), nest(2, attribute(1, value)))


def accept() -> bytes:
    """End all our chains for this packet."""
    return expression("immediate", big(1, 0), nest(2, nest(2, big(1, _ACCEPT))))


def go_to(chain: str) -> bytes:
    """Continue with another chain, without return."""
    return expression("immediate", big(1, 0), nest(2, nest(2, big(1, _GOTO), text(2, chain))))


def rule(transaction: Transaction, chain: str, *steps: bytes) -> None:
    """Append a rule to a chain."""
    transaction.add(NEW_NFT_RULE, text(2, chain), nest(4, *steps), flags=CREATE | APPEND)
