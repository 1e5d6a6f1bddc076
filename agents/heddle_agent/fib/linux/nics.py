"""NICs by their addresses: maps hold addresses, all above speaks of names."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from itertools import count

from heddle_agent.fib.linux.nft import Transaction
from heddle_agent.fib.linux.notes import NoteKind, Notes


def packed_address(address: str) -> bytes | None:
    """Four bytes; None for what is no IPv4 address."""
    try:
        return socket.inet_pton(socket.AF_INET, address)
    except (OSError, ValueError):
        return None


def text_address(packed: bytes) -> str:
    """What ``packed_address`` has made, in words."""
    return socket.inet_ntop(socket.AF_INET, packed)


class Nics:
    """The NICs of one switch's entries; each has one address, and each address one NIC."""

    def __init__(self) -> None:
        self.addresses: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}
        self._numbers: dict[str, int] = {}

    def load(self, notes: Mapping[int, str]) -> None:
        """Take over what was noted."""
        self.addresses, self._names, self._numbers = {}, {}, {}
        for number, note in notes.items():
            address, _, name = note.partition(" ")
            packed = packed_address(address)
            if packed is not None and name:
                self._put(name, packed, number)

    def name(self, packed: bytes) -> str:
        """The NIC of an address; the address itself where nobody has noted its name."""
        return self._names.get(packed) or text_address(packed)

    def text(self) -> dict[str, str]:
        """Addresses by name, in words."""
        return {n: text_address(a) for n, a in self.addresses.items()}

    def learn(
        self, names: Iterable[str], told: Mapping[str, str], in_use: Callable[[str], bool]
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """New addresses of these NICs, and NICs that have none that can be used, and why."""
        fresh: dict[str, bytes] = {}
        strange: dict[str, str] = {}
        for name in names:
            address = told.get(name)
            if address is None and name in self.addresses:
                continue
            packed = packed_address(address or "")
            if packed is None:
                strange[name] = _no_address(name, address)
            elif self.addresses.get(name) != packed:
                fresh[name] = packed
        owners: dict[bytes, str] = {}
        for name, packed in list(fresh.items()):
            owner = self._names.get(packed)
            if owner is None or owner in fresh or not in_use(owner):
                owner = owners.setdefault(packed, name)
            if owner != name:
                strange[name] = f"{name} has address {told[name]}, which is {owner}'s already"
                del fresh[name]
        return fresh, strange

    def write(self, fresh: Mapping[str, bytes], notes: Notes, transaction: Transaction) -> None:
        """Note new addresses."""
        texts: dict[int, str] = {}
        unused = count(max(self._numbers.values(), default=0) + 1)
        for packed in fresh.values():
            owner = self._names.get(packed)
            if owner is not None and owner not in fresh:  # it has no entries any more
                notes.drop(transaction, NoteKind.NIC, [self._numbers.pop(owner)])
                del self.addresses[owner], self._names[packed]
        for name, packed in fresh.items():
            number = self._numbers.get(name) or next(unused)
            texts[number] = f"{text_address(packed)} {name}"
            self._put(name, packed, number)
        notes.put(transaction, NoteKind.NIC, texts)

    def _put(self, name: str, packed: bytes, number: int) -> None:
        before = self.addresses.get(name)
        if before is not None and self._names.get(before) == name:
            del self._names[before]
        self.addresses[name] = packed
        self._names[packed] = name
        self._numbers[name] = number


def _no_address(name: str, address: str | None) -> str:
    if not address:
        return f"{name} has no address: give it one in the fabric"
    return f"{name} has address {address}: only IPv4 can be forwarded"
