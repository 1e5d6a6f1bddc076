"""The kernel as a forwarding table: exact-match maps of nftables, and a routing table per next hop.

The parts: ``schema`` defines how a packet passes our nftables table, ``marks`` which numbers on the
machine are ours. ``hops`` keeps routes and rules, ``next_hop_groups`` the groups, ``entries`` and
``nics`` the entries themselves, and ``notes`` the names behind numbers. This module combines them.

Every batch takes effect in one transaction of the kernel, but a long one is written in several. The
kernel does not release a processor before a transaction is complete, and on a busy switch a notice
would wait for it. If the kernel refuses a transaction, its answer tells why. Everything is then
read again from the kernel, which is always right, the entry at fault is left out and reported, and
the rest is sent again. A group that loses its last entry is removed with the next batch and not
with this one, because a packet may just be between the two maps.

The kernel handles one transaction after the other, and a long one takes a tenth of a second. What
cannot wait that long uses routes alone, which have another lock in the kernel: ``avoid``.

Nothing is flushed at the start or removed at the end. What exists is taken over, and
``cleaning.clean_kernel`` removes it on request.

A long batch is written in short transactions, and takes effect in the last of them. Entries do not
forward by themselves but by the number of a group, and a number forwards by its mark. So the
entries of a long batch get new numbers, one for each pair of a group that they join and a mark that
they leave. Until all entries are written, these numbers keep the old marks, so each packet is
forwarded as before, whether or not its entry is already there. One short transaction then gives the
numbers the marks of their groups. Entries to remove are removed after that, also in pieces, wider
ones first, so that no packet falls to an entry that is about to be removed too.

If the agent dies in the middle, the next one finds each entry whole, and completes those that were
written.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import structlog

from heddle_agent.fib.linux import nft, schema
from heddle_agent.fib.linux.addresses import (
    Family,
    family_of,
    of_kernel,
    packed_address,
    widened,
    written,
)
from heddle_agent.fib.linux.detours import Detours
from heddle_agent.fib.linux.elements import parse_map_elements, parse_plain_elements, plain
from heddle_agent.fib.linux.entries import (
    NO_CHANGE,
    Change,
    Entries,
    echoed,
    overflow,
    read_all,
    shapes_of,
)
from heddle_agent.fib.linux.hops import Cable, Hops, OwnLink
from heddle_agent.fib.linux.kernel import Kernel, UnavailableError, logged_failure
from heddle_agent.fib.linux.next_hop_groups import NextHopGroups, Staged
from heddle_agent.fib.linux.nft import RefusedError, Transaction
from heddle_agent.fib.linux.nics import Nics
from heddle_agent.fib.linux.notes import NoteKind, Notes
from heddle_agent.fib.linux.schema import Shape
from heddle_agent.fib.values import (
    Batch,
    Capability,
    Choice,
    Count,
    Failure,
    Group,
    Link,
    Match,
    Nic,
    Reason,
    Steering,
)
from heddle_agent.netlink import Opener, open_socket

_log = structlog.get_logger()

_ATTEMPTS = 8
_WITHDRAWN = {1: "withdrawn"}
_MOST_STAGED = 1000  # group numbers that one short transaction can flip
_FULL = {errno.ENFILE, errno.ENOSPC, errno.ENOMEM}
_CURED_BY_READING = {errno.ENOENT, errno.EEXIST, errno.EBUSY}
_UNREAD = -1  # no generation of the kernel: what it holds has to be read again


class LinuxFib:
    """The table of one switch, in the network namespace of its sockets."""

    capabilities = frozenset(Capability)
    piece = 1000
    """Number of entries written per transaction; the kernel releases the processor in between."""

    def __init__(
        self,
        switch: str,
        cables: Mapping[OwnLink, Cable],
        *,
        table_size: int = 0,
        opener: Opener = open_socket,
    ) -> None:
        """Take over what is in the kernel; UnavailableError if this machine cannot be used."""
        self.table_size = table_size
        self._switch = switch
        self._kernel = Kernel(opener)
        self._notes = Notes()
        self._nics = Nics()
        self._ways = NextHopGroups()
        self._entries = Entries()
        self._hops = Hops(self._kernel.routes, self._kernel.urgent, cables)
        self._detours = Detours(self._kernel.routes)
        self._lost: frozenset[Link] = frozenset()
        self._down: frozenset[OwnLink] = frozenset()  # the lost links of this switch
        self._due: dict[Group, Choice] = {}  # choices that are not in the kernel yet
        self._rules: set[schema.Shape] = set()
        self._generation = _UNREAD
        self._unrestored: dict[Match, Group] = {}
        """All entries that should be there, if somebody else has removed some that are not back."""
        self._known_addresses: dict[str, str] = {}
        """Addresses of the NICs in ``_unrestored``."""
        self._change = NO_CHANGE
        self._metered: frozenset[bytes] = frozenset()
        self._withdrawn = False
        try:
            self._load()
        except BaseException:
            self._kernel.close()
            raise
        self._hops.adopt(
            (
                hop
                for group in self._ways.groups.values()
                for hop in (group.primary, group.backup)
                if hop is not None
            ),
            self._nics.families,
        )

    @property
    def addresses(self) -> Mapping[str, str]:
        """The address of each NIC that entries name."""
        return self._nics.text()

    def apply(self, batch: Batch) -> Sequence[Failure]:
        """Program a batch. It takes effect in one transaction, except for later deletes."""
        own_failures: list[Failure] = []
        message = ""
        for attempt in range(_ATTEMPTS):
            try:
                self._look_again()
                return self._taken(batch, self._attempt(batch, own_failures))
            except RefusedError as refused:
                _log.debug("transaction refused", why=str(refused), attempt=attempt)
                own_failures += self._blame(batch, refused, own_failures, attempt)
                message = f"the kernel refuses it: {refused}"
            except (OSError, UnavailableError) as error:
                message = f"the kernel does not answer as it should: {error}"
                break
            with logged_failure("the kernel was not read after it refused a batch"):
                self._look_again()
        return [Failure(m, Reason.BACKEND, message) for m in (*batch.sets, *batch.deletes)]

    def steer(self, steering: Steering) -> None:
        """Remove routes over lost links, move groups, and restore routes over recovered links."""
        self._lost = steering.down
        self._due |= steering.choices
        self._down = frozenset(
            (link.target if link.source == self._switch else link.source, link.key)
            for link in steering.down
            if self._switch in (link.source, link.target)
        )
        with logged_failure("links and groups not moved; they will be tried again"):
            avoidances = self._hops.avoidances
            self._hops.steer(self._down)
            self._flip(avoidances)

    def detour(self, groups: Mapping[Group, Collection[OwnLink]]) -> None:
        """Implement ``Detouring.detour``; see ``detours``."""
        with logged_failure("no detours: what routing has not withdrawn yet may still be used"):
            self._look_again()
            self._detours.install(groups, self._entries, self._nics, self._hops)
            transaction = Transaction()
            self._ways.detour(groups, transaction)
            self._commit(transaction)

    def avoid(self, hops: Collection[OwnLink]) -> None:
        """Remove routes over these next hops, even while another thread is in another method."""
        with logged_failure("next hops not avoided before links and groups move"):
            self._hops.avoid(hops)

    def plug(self, port: OwnLink, cable: Cable) -> None:
        """Use another interface for a link; its route follows with the next ``steer``.

        This may be called while another thread is in another method.
        """
        self._hops.plug(port, cable)

    def refresh(self) -> None:
        """Restore what others have changed in our tables, rules and routes."""
        with logged_failure("the kernel was not looked through"):
            avoidances = self._hops.avoidances
            if self._unrestored or nft.ask_generation(self._kernel.nft) != self._generation:
                self._recover()
            if self._detours.over:
                self.detour({})
            self._flip(avoidances)
            self._hops.refresh()

    @property
    def withdrawn(self) -> bool:
        """Whether no packet is matched against entries; a note in the kernel says so too."""
        return self._withdrawn

    def set_overlay(self, *, withdrawn: bool) -> str:
        """Remove the rules that look packets up, or restore them, in one transaction."""
        if withdrawn == self.withdrawn:
            return ""
        with logged_failure("the kernel was not read before an order"):
            self._look_again()
        transaction = Transaction()
        before, self._withdrawn = self._withdrawn, withdrawn
        if withdrawn:
            self._notes.put(transaction, NoteKind.OVERLAY, _WITHDRAWN)
        else:
            self._notes.drop(transaction, NoteKind.OVERLAY, _WITHDRAWN)
        self._write_rules(transaction, self._rules)
        try:
            self._commit(transaction)
        except (RefusedError, OSError, UnavailableError) as error:
            self._withdrawn = before
            with logged_failure("the kernel was not read after it refused an order"):
                self._look_again()
            return f"the kernel refuses it: {error}"
        return ""

    def _write_rules(self, transaction: Transaction, rules: Collection[schema.Shape]) -> None:
        """Write rules for meters and these shapes; no shapes while the overlay is withdrawn."""
        shapes = () if self.withdrawn else rules
        schema.write_rules(transaction, shapes, metered=sorted(set(map(family_of, self._metered))))

    def read_back(self) -> Mapping[Match, Group]:
        """Return what the kernel holds; NICs without a note have their address as name."""
        self._load()
        return dict(self._entries.groups)

    def counters(self) -> Mapping[Match, Count]:
        """Return what entries have carried, including elements that this agent has replaced."""
        return self._entries.counters(read_all(self._kernel.reader))

    def meter(self, sources: Collection[Nic]) -> None:
        """Meter NICs by address. NICs without one are not metered. The kernel remembers the set."""
        wanted = frozenset(filter(None, (packed_address(nic.address) for nic in sources)))
        if wanted == self._metered:
            return
        with logged_failure("the kernel was not read before meters changed"):
            self._look_again()
        transaction = Transaction()
        _write_metered(transaction, self._metered - wanted, delete=True)
        _write_metered(transaction, wanted - self._metered)
        before, self._metered = self._metered, wanted
        self._write_rules(transaction, self._rules)
        with logged_failure("what no entry matches is not counted as it should be"):
            try:
                self._commit(transaction)
            except BaseException:
                self._metered = before
                raise

    def unmatched(self) -> Mapping[tuple[Nic, Nic], Count]:
        """Return unmatched packets by the addresses of their NICs."""
        found: dict[tuple[Nic, Nic], Count] = {}
        for _, pairs in schema.METERS.values():
            told = parse_map_elements(pairs, nft.ask_elements(self._kernel.reader, pairs.name))
            counts = zip(told.packets.tolist(), told.bytes.tolist(), strict=True)
            for key, count in zip(map(bytes, told.keys), counts, strict=True):
                source, destination = (Nic(address=written(key[at : at + 16])) for at in (0, 16))
                found[source, destination] = Count(*count)
        return found

    def close(self) -> None:
        """Close the sockets. No other thread may be in any method."""
        self._kernel.close()

    def _taken(self, batch: Batch, failures: list[Failure]) -> list[Failure]:
        """Take note of a batch in what is to be restored; return its failures."""
        if self._unrestored:
            failed = {failure.match for failure in failures}
            self._unrestored |= {m: g for m, g in batch.sets.items() if m not in failed}
            for match in batch.deletes:
                self._unrestored.pop(match, None)
        return failures

    def _attempt(self, batch: Batch, own_failures: list[Failure]) -> list[Failure]:
        """Program all sets that are possible; RefusedError if the kernel refuses others."""
        out = {failure.match for failure in own_failures}
        sets = {m: g for m, g in batch.sets.items() if m not in out} if out else batch.sets
        fresh, failures = self._refused(sets, batch)
        if failures:
            refused = {failure.match for failure in failures}
            sets = {match: group for match, group in sets.items() if match not in refused}
        used = {nic for match in sets for nic in match[:2]}
        self._program(sets, batch, {nic: a for nic, a in fresh.items() if nic in used})
        return [*own_failures, *failures]

    def _program(
        self, sets: Mapping[Match, Group], batch: Batch, fresh: Mapping[str, bytes]
    ) -> None:
        transaction = Transaction()
        moved = any(nic in self._nics.addresses for nic in fresh)
        self._nics.write(fresh, self._notes, transaction)
        change = self._change = self._entries.change(sets, batch.deletes, self._nics.addresses)
        rules = self._rules | shapes_of(change.keys)
        if not moved and not change.displaces and len(change) > self.piece:
            before = groups_before(change, self._entries, self._ways, rules)
            if before is not None and len(set(before)) <= _MOST_STAGED:
                self._stage(change, before, batch, transaction, rules)
                return
        new = [g for g in dict.fromkeys(sets.values()) if g not in self._ways.numbers]
        notes = self._ways.add(new, self._hops.slots, batch.diverted, transaction)
        self._notes.put(transaction, NoteKind.GROUP, notes)
        self._prepare(set(sets.values()), rules, transaction)
        self._ways.flip(transaction)
        numbers = list(map(self._ways.numbers.__getitem__, change.sets.values()))
        self._take(change, numbers, transaction)
        self._rules = rules

    def _stage(
        self,
        change: Change,
        groups_before: Sequence[Staged],
        batch: Batch,
        transaction: Transaction,
        rules: set[schema.Shape],
    ) -> None:
        """Program a long change in pieces that take effect together; see the module's docstring."""
        staged, notes = self._ways.stage(
            dict.fromkeys(groups_before), self._hops.slots, batch.diverted, transaction
        )
        self._notes.put(transaction, NoteKind.GROUP, notes)
        self._prepare(set(change.sets.values()), rules, transaction)
        self._commit(transaction)
        self._rules = rules
        numbers = list(map(staged.__getitem__, groups_before))
        for piece in self._entries.pieces(change, self.piece):
            self._change, transaction = piece, Transaction()
            if not piece.sets:
                self._ways.flip(transaction)
            self._take(piece, numbers[: len(piece.sets)], transaction)
            del numbers[: len(piece.sets)]
        transaction = Transaction()
        self._ways.flip(transaction)
        self._commit(transaction)

    def _prepare(
        self, needed: Collection[Group], rules: set[schema.Shape], transaction: Transaction
    ) -> None:
        """Write the notes and rules that entries need, and remove groups that nothing uses."""
        self._note_hops(transaction)
        self._sweep(needed, transaction)
        if rules != self._rules:
            self._write_rules(transaction, rules)

    def _take(self, change: Change, numbers: Sequence[int], transaction: Transaction) -> None:
        """Commit a transaction with a change; ``numbers`` are the groups of its sets."""
        self._entries.write(change, numbers, transaction)
        left = self._entries.leaving(change)
        echo = self._commit(transaction)
        self._ways.recount(left, numbers)
        self._entries.confirm(change, numbers, echoed(echo))

    def _note_hops(self, transaction: Transaction) -> None:
        """Write notes of new slots and interfaces."""
        known = self._notes.of(NoteKind.HOP)
        slots = {s: json.dumps(port) for port, s in self._hops.slots.items() if s not in known}
        self._notes.put(transaction, NoteKind.HOP, slots)
        known = self._notes.of(NoteKind.INTERFACE)
        changed = self._hops.changed_interfaces
        fresh = {index: name for index, name in changed.items() if known.get(index) != name}
        self._notes.put(transaction, NoteKind.INTERFACE, fresh)

    def _sweep(self, needed: Collection[Group], transaction: Transaction) -> None:
        """Remove groups that had no entry before this batch and get none from it."""
        unused = self._ways.unused(needed)
        self._ways.drop(unused, transaction)
        self._notes.drop(transaction, NoteKind.GROUP, unused)

    def _refused(
        self, sets: Mapping[Match, Group], batch: Batch
    ) -> tuple[dict[str, bytes], list[Failure]]:
        """Return new addresses, and failures: unusable next hops or addresses, or no room."""
        nics = dict.fromkeys(nic for match in sets for nic in match[:2])
        fresh, strange = self._nics.learn(nics, batch.addresses, self._entries.in_use)
        families = set(map(family_of, fresh.values()))
        new = [group for group in set(sets.values()) if group not in self._ways.numbers]
        hops = self._hops.strange(list(set(sets.values())) if families else new, families)
        failures: list[Failure] = []
        if hops or strange or families:
            for match, group in sets.items():
                lost = strange.get(match[0]) or strange.get(match[1])
                if not lost:
                    source, destination = (
                        family_of(fresh.get(nic) or self._nics.addresses[nic]) for nic in match[:2]
                    )
                    if source is not destination:
                        lost = f"{match[0]} and {match[1]} have addresses of two families"
                    elif (group, source) in hops:
                        why = hops[group, source]
                        failures.append(Failure(match, Reason.UNKNOWN_NEXT_HOP, why))
                if lost:
                    failures.append(Failure(match, Reason.UNSUPPORTED_MATCH, lost))
        if self.table_size:
            held, out = self._entries.groups, {f.match for f in failures}
            failures += overflow(self.table_size, held, batch, [m for m in sets if m not in out])
        return fresh, failures

    def _blame(
        self, batch: Batch, refused: RefusedError, own_failures: list[Failure], attempt: int
    ) -> list[Failure]:
        """Return the sets to leave out of the next attempt; none if reading again may help."""
        error = refused.error
        if attempt == 0 and error.errno in _CURED_BY_READING:
            return []
        reason = Reason.TABLE_FULL if error.errno in _FULL else Reason.BACKEND
        words = f"the kernel refuses it: {error.strerror}"
        culprit = self._entries.culprit(self._change, refused)
        if culprit is not None and attempt < _ATTEMPTS // 2:
            return [Failure(culprit, reason, words)]
        out = {failure.match for failure in own_failures}
        return [Failure(match, reason, words) for match in batch.sets if match not in out]

    def _flip(self, avoidances: int) -> None:
        """Move groups, then fill the tables of links that are up and were avoided until now."""
        self._look_again()
        transaction = Transaction()
        self._note_hops(transaction)
        empty = self._hops.slots_of(self._down)
        self._ways.steer(self._due, self._lost, empty, transaction)
        try:
            self._commit(transaction)
        except RefusedError as refused:
            _log.error("groups not moved; they will be tried again", why=str(refused))
            self._look_again()
        else:
            self._due = {}
            self._hops.restore(self._down, avoidances)

    def _commit(self, transaction: Transaction) -> list[bytes]:
        if not transaction:
            return []
        before, self._generation = self._generation, _UNREAD
        echo = transaction.commit(self._kernel.nft)
        now = nft.ask_generation(self._kernel.nft)
        if now == before + 1:
            self._generation = now
        elif now != before:  # somebody else has changed something too: ``refresh`` finds out what
            self._generation = before
        return echo

    def _look_again(self) -> None:
        """Read the kernel again if it is not certain what it holds, because something failed."""
        if self._generation == _UNREAD:
            self._recover()

    def _recover(self) -> None:
        """Read everything again from the kernel, and undo what others have done to entries."""
        fresh = not self._unrestored
        wanted = self._unrestored = self._unrestored or dict(self._entries.groups)
        self._known_addresses |= self._nics.text()
        self._load()
        held = self._entries.groups
        lost = {
            match: group
            for match, group in wanted.items()
            if (there := held.get(match)) is not group and not (there and there.like(group))
        }
        strange = held.keys() - wanted
        if lost and fresh:
            _log.warning("entries had been removed by somebody else", entries=len(lost))
        failures: Sequence[Failure] = ()
        if lost or strange:
            try:
                batch = Batch(lost, strange, addresses=self._known_addresses)
                failures = self._attempt(batch, [])
            except (RefusedError, OSError, UnavailableError) as error:
                _log.error("entries not put back; they will be tried again", why=str(error))
                self._load()
                return
        if not failures:
            self._unrestored, self._known_addresses = {}, {}
        elif fresh:
            why = failures[0].message
            _log.warning("entries not put back yet", entries=len(failures), why=why)

    def _load(self) -> None:
        """Create what is missing of our table, and read what it holds.

        Orders that the table has lost are written again, before any entry.
        """
        self._generation = _UNREAD
        self._kernel.install()
        kernel = self._kernel.nft
        generation = nft.ask_generation(kernel)  # before reading, to notice what changes meanwhile
        self._notes.load(nft.ask_elements(kernel, schema.NOTES))
        self._nics.load(self._notes.of(NoteKind.NIC))
        self._hops.load(self._notes.of(NoteKind.HOP), self._notes.of(NoteKind.INTERFACE))
        read = read_all(kernel)
        numbers = {number for told in read for number in np.unique(told.values).tolist()}
        transaction = Transaction()
        self._ways.load(
            self._notes.of(NoteKind.GROUP),
            nft.ask_elements(kernel, schema.WAYS),
            self._hops.slots,
            numbers,
            transaction,
        )
        self._ways.count(self._entries.load(read, self._nics, self._ways.groups))
        self._rules = self._entries.shapes
        metered = {
            widened(key)
            for meter in schema.METERS.values()
            for key, _ in parse_plain_elements(
                meter.metered, nft.ask_elements(kernel, meter.metered)
            )
        }
        _write_metered(transaction, self._metered - metered)
        self._metered |= metered
        if self._notes.of(NoteKind.OVERLAY):
            self._withdrawn = True
        elif self._withdrawn:
            self._notes.put(transaction, NoteKind.OVERLAY, _WITHDRAWN)
        self._write_rules(transaction, self._rules)
        self._generation = generation
        self._commit(transaction)


def _write_metered(
    transaction: Transaction, nics: Collection[bytes], *, delete: bool = False
) -> None:
    """Add NICs to the sets of metered sources, or remove them."""
    for family, meter in schema.METERS.items():
        keys = [of_kernel(nic) for nic in sorted(nics) if family_of(nic) is family]
        transaction.various(meter.metered, list(map(plain, keys)), delete=delete)


def groups_before(
    change: Change, entries: Entries, ways: NextHopGroups, shapes: Collection[Shape]
) -> list[Staged] | None:
    """Return the group of each entry to set, and the mark by which its packets forward now.

    Returns None if there is no such single mark. If some entries fix only one port and some only
    the other, packets of one entry may match different entries now.
    """
    crossing = ((True, False), (False, True))
    if any(all(Shape(family, *fixed) in shapes for fixed in crossing) for family in Family):
        return None
    marks = (ways.leads(entries.answering(match)) for match in change.sets)
    return list(zip(change.sets.values(), marks, strict=True))
