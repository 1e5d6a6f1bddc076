"""The entries of a switch as keys of our maps: what is in the kernel, and what a batch changes.

Entries are indexed by match and by the bytes of their key, because an address may move from one NIC
to another. The kernel's counter of an element starts again at 0 when the element is replaced, so
its last count is added to later ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heddle_agent.fib.linux import elements, nft
from heddle_agent.fib.linux.elements import KEY_BYTES, Bytes, MapElements, Words
from heddle_agent.fib.linux.nft import RefusedError, Transaction
from heddle_agent.fib.linux.nics import Nics
from heddle_agent.fib.linux.schema import LAYOUTS, Layout, Shape
from heddle_agent.fib.values import ANY_PORT, Batch, Count, Failure, Group, Match, Reason
from heddle_agent.netlink import Netlink

_NOTHING = Count(0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """Entries to write and to remove, computed from what is in the kernel."""

    sets: Mapping[Match, Group]
    keys: list[bytes]
    """Keys of the sets."""
    gone: list[bytes]
    """Keys to remove: of entries deleted, replaced, or displaced by an address that moved."""
    dropped: list[Match]
    """Entries that no longer exist afterwards."""
    displaces: bool = False
    """Whether a set takes the key of another entry."""

    def __bool__(self) -> bool:
        return bool(self.keys or self.gone)

    def __len__(self) -> int:
        return len(self.keys) + len(self.dropped)


NO_CHANGE = Change({}, [], [], [])


class Entries:
    """The content of the maps."""

    def __init__(self) -> None:
        self.groups: dict[Match, Group] = {}
        self._keys: dict[Match, bytes] = {}
        self._matches: dict[bytes, Match] = {}
        self._numbers: dict[Match, int] = {}  # the group's number in the kernel
        self._counted: dict[Match, Count] = {}

    def __len__(self) -> int:
        return len(self.groups)

    def load(
        self, read: Iterable[MapElements], nics: Nics, groups: Mapping[int, Group]
    ) -> Counter[int]:
        """Take over what the kernel holds; return the number of entries by group number."""
        self.groups, self._keys, self._numbers = {}, {}, {}
        uses: Counter[int] = Counter()
        for told in read:
            numbers = told.values.tolist()
            uses.update(numbers)
            for key, number in zip(_apart(told.keys), numbers, strict=True):
                match = self._match(key, nics)
                self._keys[match] = key
                self._numbers[match] = number
                self.groups[match] = groups[number]
        self._matches = {key: match for match, key in self._keys.items()}
        self._counted = {m: c for m, c in self._counted.items() if m in self._keys}
        return uses

    def leading_to(self, groups: Collection[Group]) -> Iterator[tuple[str, Group]]:
        """Yield destination and group of each entry that uses one of these groups."""
        return ((match[1], group) for match, group in self.groups.items() if group in groups)

    def in_use(self, nic: str) -> bool:
        """Whether any entry names this NIC."""
        return any(nic in match[:2] for match in self.groups)

    def change(
        self,
        sets: Mapping[Match, Group],
        deletes: Collection[Match],
        addresses: Mapping[str, bytes],
    ) -> Change:
        """Return what a batch changes."""
        if not sets:
            new: list[bytes] = []
        else:
            sources, destinations, *ports = zip(*sets, strict=True)
            new = _apart(
                elements.full_keys(
                    [addresses[nic] for nic in sources],
                    [addresses[nic] for nic in destinations],
                    *ports,
                )
            )
        before = list(map(self._keys.get, sets))
        held = list(map(self.groups.get, sets))
        rows = list(zip(sets.items(), new, before, held, strict=True))
        changed = [
            (match, group, key)
            for (match, group), key, old, has in rows
            if old != key or has is not group
        ]
        wanted = {match: group for match, group, _ in changed}
        keys = [key for _, _, key in changed]
        gone = {self._keys[m] for m in deletes if m in self._keys}
        gone.update(self._keys[m] for m in wanted if m in self._keys)
        gone.update(self._matches.keys() & keys)
        dropped = [m for key in gone if (m := self._matches[key]) not in wanted]
        displaces = list(map(self._matches.get, keys, wanted)) != list(wanted)
        return Change(wanted, keys, list(gone), dropped, displaces)

    def pieces(self, change: Change, most: int) -> Iterator[Change]:
        """Cut a change that displaces no entry into pieces: sets, then removals, wider first."""
        sets = list(zip(change.sets.items(), change.keys, strict=True))
        for start in range(0, len(sets), most):
            piece = sets[start : start + most]
            gone = [self._keys[match] for (match, _), _ in piece if match in self._keys]
            yield Change(dict(entry for entry, _ in piece), [key for _, key in piece], gone, [])
        widest_first = sorted(change.dropped, key=lambda match: (match[2] > 0) + (match[3] > 0))
        for start in range(0, len(widest_first), most):
            dropped = widest_first[start : start + most]
            yield Change({}, [], [self._keys[match] for match in dropped], dropped)

    def answering(self, match: Match) -> int | None:
        """Return the group number that packets of a match use now, by it or a wider entry.

        Returns None if no entry matches them.
        """
        source, destination, source_port, destination_port = match
        for ports in (
            (source_port, destination_port),
            (source_port, ANY_PORT),
            (ANY_PORT, destination_port),
            (ANY_PORT, ANY_PORT),
        ):
            number = self._numbers.get((source, destination, *ports))
            if number is not None:
                return number
        return None

    def write(self, change: Change, numbers: Sequence[int], transaction: Transaction) -> None:
        """Put a change into a transaction; ``numbers`` are the group numbers of its sets."""
        gone = _together(change.gone)
        new = _together(change.keys)
        values: Words = np.array(numbers, dtype=np.uint32)
        for layout, rows in _by_layout(gone):
            transaction.elements(
                layout.name, *elements.packed_elements(layout, gone[rows]), delete=True
            )
        for layout, rows in _by_layout(new):
            transaction.elements(
                layout.name, *elements.packed_elements(layout, new[rows], values[rows])
            )

    def leaving(self, change: Change) -> list[int]:
        """Return the group number of each entry that a change removes or moves to another group."""
        before = map(self._numbers.get, (*change.dropped, *change.sets))
        return [number for number in before if number is not None]

    def confirm(self, change: Change, numbers: Sequence[int], echo: Iterable[MapElements]) -> None:
        """Take note that a change is in the kernel; ``echo`` has the counts of removed elements."""
        for told in echo:
            counts = zip(told.packets.tolist(), told.bytes.tolist(), strict=True)
            for key, count in zip(_apart(told.keys), counts, strict=True):
                match = self._matches.get(key)
                if match is not None and count[0]:
                    before = self._counted.get(match, _NOTHING)
                    self._counted[match] = Count(before.packets + count[0], before.bytes + count[1])
        for key in change.gone:
            match = self._matches.pop(key)
            del self._keys[match], self.groups[match], self._numbers[match]
        for match in change.dropped:
            self._counted.pop(match, None)
        self.groups.update(change.sets)
        self._numbers.update(zip(change.sets, numbers, strict=True))
        self._keys.update(zip(change.sets, change.keys, strict=True))
        self._matches.update(zip(change.keys, change.sets, strict=True))

    def counters(self, read: Iterable[MapElements]) -> dict[Match, Count]:
        """Return what entries have carried; ``read`` has what the kernel has counted."""
        found: dict[Match, Count] = {}
        for told in read:
            counts = zip(told.packets.tolist(), told.bytes.tolist(), strict=True)
            for key, (packets, size) in zip(_apart(told.keys), counts, strict=True):
                match = self._matches.get(key)
                if match is not None:
                    before = self._counted.get(match, _NOTHING)
                    found[match] = Count(before.packets + packets, before.bytes + size)
        return found

    @property
    def shapes(self) -> set[Shape]:
        """The shapes of all entries."""
        return shapes_of(list(self._matches))

    def culprit(self, change: Change, refused: RefusedError) -> Match | None:
        """Return the entry of a change that the kernel refused, None if it did not say."""
        row, part = refused.element, refused.part
        if row is None or part is None or part.delete:
            return None
        for layout, rows in _by_layout(_together(change.keys)):
            if layout.name == part.name:
                return list(change.sets)[int(rows[row])]
        return None

    @staticmethod
    def _match(key: bytes, nics: Nics) -> Match:
        return (
            nics.name(key[:16]),
            nics.name(key[16:32]),
            int.from_bytes(key[32:34], "big"),
            int.from_bytes(key[36:38], "big"),
        )


def shapes_of(keys: list[bytes]) -> set[Shape]:
    """Return the shapes that occur among keys."""
    return {layout.shape for layout, _ in _by_layout(_together(keys))}


def _by_layout(keys: Bytes) -> Iterator[tuple[Layout, NDArray[np.intp]]]:
    """Yield each map with the rows of its keys; maps without keys are left out."""
    for layout in LAYOUTS:
        rows = np.flatnonzero(elements.of_layout(layout, keys))
        if len(rows):
            yield layout, rows


def _apart(keys: Bytes) -> list[bytes]:
    raw = keys.tobytes()
    return [raw[start : start + KEY_BYTES] for start in range(0, len(raw), KEY_BYTES)]


def _together(keys: list[bytes]) -> Bytes:
    return np.frombuffer(b"".join(keys), np.uint8).reshape(-1, KEY_BYTES)


def overflow(
    size: int, held: Mapping[Match, Group], batch: Batch, sets: Collection[Match]
) -> list[Failure]:
    """Return failures of sets that do not fit once the batch's deletes are gone."""
    new = [match for match in sets if match not in held]
    room = size - len(held) + sum(match in held for match in set(batch.deletes))
    message = f"the table holds {size} entries and is full"
    return [Failure(match, Reason.TABLE_FULL, message) for match in new[max(room, 0) :]]


def read_all(kernel: Netlink) -> list[MapElements]:
    """Return all entries that the kernel holds."""
    return [
        elements.parse_map_elements(layout, nft.ask_elements(kernel, layout.name))
        for layout in LAYOUTS
    ]


def echoed(echo: list[bytes]) -> list[MapElements]:
    """Return the elements in the answer to a transaction."""
    return [elements.parse_map_elements(layout, echo) for layout in LAYOUTS] if echo else []
