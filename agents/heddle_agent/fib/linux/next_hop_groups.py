"""Groups as numbers, and the mark by which each number forwards: the second map that packets pass.

A group is written once, and moved by changing one element. It is moved only where the kernel does
not already do the same by itself: while a next hop's table is empty, groups with that primary are
on their backups anyway. Their new marks are owed, and are written before the table is filled again,
so that no group returns to a path that is dead farther away.

A group may have several numbers. Entries that are written in several transactions but must take
effect together get a new number that still leads where they lead now (``stage``). When all are
written, one transaction gives these numbers the marks of their groups (``flip``).
"""

from __future__ import annotations

import json
import struct
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from heddle_agent.fib.linux import marks
from heddle_agent.fib.linux.elements import parse_plain_elements, plain
from heddle_agent.fib.linux.hops import OwnLink
from heddle_agent.fib.linux.nft import Transaction
from heddle_agent.fib.linux.schema import WAYS
from heddle_agent.fib.values import Choice, Group, Link, NextHop
from heddle_agent.netlink import attributes

Staged: TypeAlias = tuple[Group, int]
"""A group that entries will join, and the mark by which they forward until then."""

_NUMBER = struct.Struct("=I")
_LAST = (1 << 24) - 1
_DATA = 2


class NextHopGroups:
    """The groups of one switch."""

    def __init__(self) -> None:
        self.numbers: dict[Group, int] = {}
        """The number by which new entries join a group; it may have others."""
        self.groups: dict[int, Group] = {}
        self._shared: defaultdict[Group, set[int]] = defaultdict(set)  # all its numbers
        self._staged: set[int] = set()
        self._flipping: set[int] = set()  # staged until the current transaction is committed
        self._uses: Counter[int] = Counter()  # number of entries by group number
        self._unused: set[int] = set()
        self._slots: dict[int, tuple[int, int]] = {}
        self._wanted: dict[int, int] = {}
        self._written: dict[int, int] = {}
        self._owed: set[int] = set()
        self._choices: dict[Group, Choice] = {}
        self._detoured: set[Group] = set()
        self._down: frozenset[Link] = frozenset()
        self._by_backup_risk: defaultdict[Link, set[int]] = defaultdict(set)
        self._next = 0

    def load(
        self,
        notes: Mapping[int, str],
        datagrams: Iterable[bytes],
        slots: Mapping[OwnLink, int],
        needed: Collection[int],
        transaction: Transaction,
    ) -> None:
        """Take over what the kernel holds, and keep what is known and still true.

        Groups that entries in ``needed`` use but that are missing are written again.
        """
        before = self.groups
        self._written = {
            _NUMBER.unpack(key)[0]: _NUMBER.unpack(attributes(found[_DATA])[1])[0]
            for key, found in parse_plain_elements(WAYS, datagrams)
        }
        lost = [number for number in needed if number not in self._written]
        self._written.update(dict.fromkeys(lost, marks.UNDERLAY))
        ports = {slot: port for port, slot in slots.items()}
        self.groups, self.numbers, self._slots = {}, {}, {}
        self._by_backup_risk.clear()
        self._shared.clear()
        alike: dict[str, Group] = {}
        for number, mark in self._written.items():
            group = before.get(number)
            note = notes.get(number)
            if group is None or note != described(group):
                group = _read(note)
            if group is None:  # without a note, no entry to come may join it
                group = _guessed(mark, ports)
            else:
                group = alike.setdefault(described(group), group)
            self._admit(number, group, slots)
        self._wanted = {
            number: self._mark(number) if group in self._choices else mark
            for (number, group), mark in zip(
                self.groups.items(), self._written.values(), strict=True
            )
        }
        transaction.various(WAYS, [self._element(number) for number in lost])
        self._owed = {n for n, mark in self._written.items() if mark != self._wanted[n]}
        self._staged = (self._staged | self._flipping) & self._owed
        self._flipping.clear()

    def add(
        self,
        groups: Sequence[Group],
        slots: Mapping[OwnLink, int],
        diverted: Mapping[Group, Choice],
        transaction: Transaction,
    ) -> dict[int, str]:
        """Write new groups; return their notes by number."""
        notes: dict[int, str] = {}
        for group in groups:
            number = self._free()
            self._admit(number, group, slots)
            notes[number] = described(group)
            self._choose(group, diverted)
            self._wanted[number] = self._written[number] = self._mark(number)
        transaction.various(WAYS, [self._element(number) for number in notes])
        return notes

    def stage(
        self,
        groups_before: Iterable[Staged],
        slots: Mapping[OwnLink, int],
        diverted: Mapping[Group, Choice],
        transaction: Transaction,
    ) -> tuple[dict[Staged, int], dict[int, str]]:
        """Give groups new numbers that forward by another mark until ``flip``.

        Returns the number of each (group, mark), and the notes by number.
        """
        numbers: dict[Staged, int] = {}
        for group, before in groups_before:
            number = numbers[group, before] = self._free()
            self._admit(number, group, slots)
            self._choose(group, diverted)
            self._wanted[number] = self._mark(number)
            self._written[number] = before
        self._staged.update(numbers.values())
        transaction.various(WAYS, [self._element(number) for number in numbers.values()])
        return numbers, {number: described(self.groups[number]) for number in numbers.values()}

    def detour(self, groups: Collection[Group], transaction: Transaction) -> None:
        """Let exactly these groups take detours, as far as they are on the underlay."""
        wanted = {group for group in groups if group in self.numbers}
        changed, self._detoured = wanted ^ self._detoured, wanted
        numbers = [n for group in changed for n in self._shared.get(group, ())]
        self._wanted.update((number, self._mark(number)) for number in numbers)
        self._write([n for n in numbers if self._written[n] != self._wanted[n]], transaction)

    def flip(self, transaction: Transaction) -> None:
        """Make everything staged take effect, including what a refused attempt has staged."""
        due = [n for n in self._staged if n in self.groups and self._written[n] != self._wanted[n]]
        self._write(due, transaction)
        self._flipping, self._staged = self._staged, set()

    def leads(self, number: int | None) -> int:
        """Return the mark by which a number forwards; the underlay's mark for None."""
        return marks.UNDERLAY if number is None else self._written[number]

    def count(self, uses: Counter[int]) -> None:
        """Set the number of entries of each group number; all others have none."""
        self._uses = uses
        self._unused = {number for number in self.groups if not uses[number]}

    def recount(self, fewer: Iterable[int], more: Iterable[int]) -> None:
        """Count entries that have left (``fewer``) and joined (``more``), one number per entry."""
        change = Counter(more)
        change.subtract(Counter(fewer))
        for number, entries in change.items():
            self._uses[number] += entries
            (self._unused.discard if self._uses[number] else self._unused.add)(number)

    def unused(self, needed: Collection[Group]) -> list[int]:
        """Return the numbers that have no entries and are not about to get any."""
        return [
            number
            for number in self._unused
            if (group := self.groups[number]) not in needed or self.numbers[group] != number
        ]

    def drop(self, numbers: Iterable[int], transaction: Transaction) -> None:
        """Remove these numbers, and groups that then have none."""
        gone = list(numbers)
        transaction.various(WAYS, [plain(_NUMBER.pack(n)) for n in gone], delete=True)
        for number in gone:
            group = self.groups.pop(number)
            for link in group.backup_risks:
                self._by_backup_risk[link].discard(number)
            self._shared[group].discard(number)
            if not self._shared[group]:
                del self.numbers[group], self._shared[group]
                self._choices.pop(group, None)
            elif self.numbers[group] == number:
                self.numbers[group] = next(iter(self._shared[group]))
            del self._wanted[number], self._written[number], self._slots[number]
            self._uses.pop(number, None)
            self._unused.discard(number)
            self._owed.discard(number)

    def steer(
        self,
        choices: Mapping[Group, Choice],
        down: frozenset[Link],
        empty: frozenset[int],
        transaction: Transaction,
    ) -> None:
        """Move groups where the kernel does not do so itself; ``empty`` are slots without route.

        A backup whose own path has lost a link is removed from marks before it is needed.
        """
        for link in down ^ self._down:
            self._owed |= self._by_backup_risk.get(link, set())
        self._down = down
        for group, choice in choices.items():
            if group in self.numbers:
                self._choices[group] = choice
                self._owed |= self._shared[group]
        self._wanted.update((number, self._mark(number)) for number in self._owed)
        self._write([n for n in self._owed if self._is_due(n, empty)], transaction)
        self._owed = {n for n in self._owed if self._written[n] != self._wanted[n]}

    def _write(self, due: Collection[int], transaction: Transaction) -> None:
        """Give these numbers the marks that they should have."""
        transaction.various(WAYS, [plain(_NUMBER.pack(n)) for n in due], delete=True)
        for number in due:
            self._written[number] = self._wanted[number]
        transaction.various(WAYS, [self._element(number) for number in due])

    def _choose(self, group: Group, diverted: Mapping[Group, Choice]) -> None:
        self._choices[group] = diverted.get(group, self._choices.get(group, Choice.PRIMARY))

    def _is_due(self, number: int, empty: frozenset[int]) -> bool:
        written, wanted = self._written[number], self._wanted[number]
        return marks.leaves(written, empty) != marks.leaves(wanted, empty)

    def _mark(self, number: int) -> int:
        group = self.groups[number]
        choice = self._choices.get(group, Choice.PRIMARY)
        primary, backup = self._slots[number]
        if choice is Choice.UNDERLAY:
            return marks.mark(0, marks.DETOUR) if group in self._detoured else marks.UNDERLAY
        if choice is Choice.BACKUP:
            return marks.mark(0, backup)
        return marks.mark(primary, backup if self._down.isdisjoint(group.backup_risks) else 0)

    def _element(self, number: int) -> bytes:
        return plain(_NUMBER.pack(number), _NUMBER.pack(self._written[number]))

    def _admit(self, number: int, group: Group, slots: Mapping[OwnLink, int]) -> None:
        self.groups[number] = group
        self.numbers[group] = number
        self._shared[group].add(number)
        for link in group.backup_risks:
            self._by_backup_risk[link].add(number)
        backup = 0 if group.backup is None else slots.get(group.backup.port, 0)
        self._slots[number] = slots.get(group.primary.port, 0), backup

    def _free(self) -> int:
        while True:
            self._next = self._next % _LAST + 1
            if self._next not in self.groups:
                return self._next


def described(group: Group) -> str:
    """Return a group as text that ``_read`` can parse."""
    known = [group.primary, group.backup, group.risks, group.backup_risks]
    return json.dumps(known, separators=(",", ":"))


def _read(note: str | None) -> Group | None:
    try:
        primary, backup, risks, backup_risks = json.loads(note or "")
        return Group(
            NextHop(*primary),
            None if backup is None else NextHop(*backup),
            tuple(Link(*link) for link in risks),
            tuple(Link(*link) for link in backup_risks),
        )
    except (ValueError, TypeError):
        return None


def _guessed(mark: int, ports: Mapping[int, OwnLink]) -> Group:
    """Return a group that fits a mark, for a number without a note; no flow is planned with it."""
    first, second = (ports.get(slot, ("unknown", str(slot))) for slot in marks.slots(mark))
    if not marks.slots(mark)[0]:
        first, second = second, ("unknown", "0")
    return Group(NextHop(*first), NextHop(*second) if marks.slots(mark)[1] else None)
