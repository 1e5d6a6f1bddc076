"""NICs and their addresses: the maps hold addresses, the rest of the agent uses names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from itertools import count

from heddle_agent.fib.linux.addresses import Family, family_of, packed_address, written
from heddle_agent.fib.linux.nft import Transaction
from heddle_agent.fib.linux.notes import NoteKind, Notes


class Nics:
    """The NICs of one switch's entries. Each has one address, and each address one NIC."""

    def __init__(self) -> None:
        self.addresses: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}
        self._numbers: dict[str, int] = {}

    def load(self, notes: Mapping[int, str]) -> None:
        """Take over NICs from notes."""
        self.addresses, self._names, self._numbers = {}, {}, {}
        for number, note in notes.items():
            address, _, name = note.partition(" ")
            read = packed_address(address)
            if read is not None and name:
                self._put(name, read, number)

    def name(self, address: bytes) -> str:
        """Return the NIC of an address; the address itself if there is no note of it."""
        return self._names.get(address) or written(address)

    def text(self) -> dict[str, str]:
        """Return addresses by name, as text."""
        return {name: written(address) for name, address in self.addresses.items()}

    @property
    def families(self) -> set[Family]:
        """Families of the addresses."""
        return set(map(family_of, self.addresses.values()))

    def learn(
        self, names: Collection[str], told: Mapping[str, str], in_use: Callable[[str], bool]
    ) -> tuple[dict[str, bytes], dict[str, str]]:
        """Return new addresses of these NICs, and NICs without a usable address, and why."""
        fresh: dict[str, bytes] = {}
        strange: dict[str, str] = {}
        for name in names:
            address = told.get(name)
            if address is None and name in self.addresses:
                continue
            read = packed_address(address or "")
            if read is None:
                strange[name] = _no_address(name, address)
            elif self.addresses.get(name) != read:
                fresh[name] = read
        owners: dict[bytes, str] = {}
        for name, read in list(fresh.items()):
            owner = self._names.get(read)
            if owner is None or owner in fresh or not (owner in names or in_use(owner)):
                owner = owners.setdefault(read, name)
            if owner != name:
                strange[name] = f"{name} has address {told[name]}, which is {owner}'s already"
                del fresh[name]
        return fresh, strange

    def write(self, fresh: Mapping[str, bytes], notes: Notes, transaction: Transaction) -> None:
        """Write notes of new addresses, and remove those of NICs that they replace."""
        texts: dict[int, str] = {}
        unused = count(max(self._numbers.values(), default=0) + 1)
        for address in fresh.values():
            owner = self._names.get(address)
            if owner is not None and owner not in fresh:  # the owner has no entries any more
                notes.drop(transaction, NoteKind.NIC, [self._numbers.pop(owner)])
                del self.addresses[owner], self._names[address]
        for name, address in fresh.items():
            number = self._numbers.get(name) or next(unused)
            texts[number] = f"{written(address)} {name}"
            self._put(name, address, number)
        notes.put(transaction, NoteKind.NIC, texts)

    def _put(self, name: str, address: bytes, number: int) -> None:
        before = self.addresses.get(name)
        if before is not None and self._names.get(before) == name:
            del self._names[before]
        self.addresses[name] = address
        self._names[address] = name
        self._numbers[name] = number


def _no_address(name: str, address: str | None) -> str:
    if not address:
        return f"{name} has no address: give it one in the fabric"
    return f"{name} has address {address!r}: give it one of IPv4 or of IPv6"
