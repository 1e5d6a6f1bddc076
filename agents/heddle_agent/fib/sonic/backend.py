"""Entries as rules in CONFIG_DB, acknowledged by their status in STATE_DB.

A set writes a new rule under a new name, and the old rule is removed once the switch says that the
new one is active. So an acknowledgement cannot belong to the old rule, and an entry whose set
failed forwards as before. Only if the table has no room for both is the old rule removed first. A
repair changes the action of rules in place, without waiting, with one write per entry of the groups
that move.

Redis may be away. Operations that cannot be written then fail. A repair that cannot be written is
written later by ``refresh``.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import redis
import structlog
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from heddle_agent.fib.sonic import schema
from heddle_agent.fib.sonic.notes import note, read
from heddle_agent.fib.sonic.schema import Exit
from heddle_agent.fib.values import (
    Batch,
    Capability,
    Choice,
    Count,
    Failure,
    Group,
    Match,
    Reason,
    Steering,
)

_log = structlog.get_logger()

_CHUNK = 1000
"""Number of commands that are sent to Redis at once."""
_WINDOW = 250
"""Number of rules whose status is read at once; the switch handles rules roughly in order."""
_POLL_SECONDS = 0.01
_ANSWER_SECONDS = 2.0
"""A Redis that does not answer within this time counts as away."""


class UnavailableSwitchError(Exception):
    """This machine has no switch that the backend can program; the message says why."""


def socket_of(path: Path) -> Callable[[int], Any]:
    """Return a function that opens a database, by number, of the Redis at this Unix socket."""

    def connect(number: int) -> Any:  # noqa: ANN401 - redis-py's answers have no one type
        return redis.Redis(
            unix_socket_path=str(path),
            db=number,
            decode_responses=True,
            socket_timeout=_ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 1),  # once, at once, if a restart has cut the connection
        )

    return connect


class SonicFib:
    """The entries of one SONiC switch."""

    capabilities = frozenset({Capability.MATCH_PAIR, Capability.MATCH_PORTS, Capability.BACKUP})

    def __init__(
        self,
        exits: Mapping[tuple[str, str], Exit],
        connect: Callable[[int], Any],
        *,
        ports: Collection[str],
        table_size: int = 0,
        patience: float = 10.0,
    ) -> None:
        """Take over the rules that exist.

        Args:
            exits: Port and address of each link that entries may lead to, by neighbour and key.
            connect: Opens the database with a number: a ``redis.Redis`` that decodes answers.
            ports: Ports whose packets are matched: those of all links, including links to NICs.
            table_size: Number of entries it may hold; 0 is as many as the switch has room for.
            patience: Seconds to wait for news from the switch about rules that it was given.

        Raises:
            UnavailableSwitchError: Redis does not answer, or the switch cannot redirect.
        """
        self._exits = dict(exits)
        self._ports = ",".join(sorted(set(ports)))
        self._patience = patience
        self._asked_size = table_size
        self._config, self._state, self._counters = (
            connect(number) for number in (schema.CONFIG_DB, schema.STATE_DB, schema.COUNTERS_DB)
        )
        self._change = self._config.register_script(_CHANGE)
        self.withdrawn = False
        self.table_size = table_size
        self._addresses: dict[str, str] = {}
        self._entries: dict[Match, Group] = {}
        self._names: dict[Match, str] = {}
        self._of_group: dict[Group, set[Match]] = defaultdict(set)
        self._choices: dict[Group, Choice] = {}  # groups that are not on their primary
        self._fresh: dict[Match, tuple[str, Group]] = {}  # rules that are not acknowledged yet
        self._avoided: set[tuple[str, str]] = set()
        self._lock = threading.Lock()  # for what ``avoid`` reads and writes
        self._owed = False  # whether Redis lacks a repair
        self._numbers = count(1)
        try:
            self._check_capability()
            self._load()
            self._bind()
            self._read_room()
        except RedisError as error:
            raise UnavailableSwitchError(f"SONiC's Redis does not answer: {error}") from error

    def apply(self, batch: Batch) -> Sequence[Failure]:
        """Program a batch, entry by entry, so the data plane may see it half done."""
        self._addresses.update(batch.addresses)
        failures = list(self._refused(batch))
        refused = {failure.match for failure in failures}
        sets = {match: group for match, group in batch.sets.items() if match not in refused}
        for group in set(sets.values()):
            self._choose(group, batch.diverted.get(group, Choice.PRIMARY))
        try:
            failures += self._program(sets, [match for match in batch.deletes if match not in sets])
        except RedisError as error:
            self._owed = True
            done = {match for match, group in sets.items() if self._entries.get(match) is group}
            left = [*(sets.keys() - done), *(m for m in batch.deletes if m in self._entries)]
            text = f"SONiC's Redis does not answer: {error}"
            failures += [Failure(match, Reason.BACKEND, text) for match in left]
        return failures

    def _program(self, sets: Mapping[Match, Group], deletes: Iterable[Match]) -> list[Failure]:
        gone = {match: self._names[match] for match in deletes if match in self._names}
        old = {match: self._names[match] for match in sets if match in self._names}
        crowded = self.table_size and len(self._names) + len(sets) > self.table_size
        if crowded:
            self._drop({**gone, **old})
        fresh = {match: f"e{next(self._numbers)}" for match in sets}
        with self._lock:
            self._fresh = {match: (fresh[match], group) for match, group in sets.items()}
        self._write(fresh, sets)
        failures = {failure.match: failure for failure in self._awaited(fresh)}
        self._remove(fresh[match] for match in failures)
        if not crowded:
            self._remove([*gone.values(), *(old[m] for m in old.keys() - failures.keys())])
        elif lost := {m: old[m] for m in old.keys() & failures.keys()}:
            self._write(lost, {match: self._entries[match] for match in lost})
        with self._lock:
            for match in gone:
                self._forget(match)
            for match in sets.keys() - failures.keys():
                self._forget(match)
                self._entries[match], self._names[match] = sets[match], fresh[match]
                self._of_group[sets[match]].add(match)
            self._fresh = {}
        return list(failures.values())

    def _drop(self, names: Mapping[Match, str]) -> None:
        """Remove rules, and wait until the switch has removed them."""
        self._remove(names.values())
        deadline = time.monotonic() + self._patience
        while any(self._statuses(names.values())) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def _forget(self, match: Match) -> None:
        group = self._entries.pop(match, None)
        self._names.pop(match, None)
        if group is not None:
            self._of_group[group].discard(match)
            if not self._of_group[group]:
                del self._of_group[group]
                self._choices.pop(group, None)

    def _write(self, names: Mapping[Match, str], groups: Mapping[Match, Group]) -> None:
        """Write the rules of entries, their notes first: a rule without a note is not ours."""
        rows = list(names.items())
        for part in _parts(rows):
            notes = {name: note(m, groups[m], self._addresses) for m, name in part}
            self._state.hset(schema.NOTES_KEY, mapping=notes)
            with self._lock, self._config.pipeline(transaction=False) as pipe:
                for match, name in part:
                    pipe.hset(f"{schema.RULES}{name}", mapping=self._fields(match, groups[match]))
                pipe.execute()

    def _remove(self, names: Iterable[str]) -> None:
        for part in _parts(list(names)):
            self._config.delete(*(f"{schema.RULES}{name}" for name in part))
            self._state.hdel(schema.NOTES_KEY, *part)

    def _fields(self, match: Match, group: Group) -> dict[str, str]:
        return schema.match_fields(match, self._addresses) | self._action(group)

    def _action(self, group: Group) -> dict[str, str]:
        """Return the action that the rules of a group have now."""
        choice = self._choices.get(group, Choice.PRIMARY)
        if choice is Choice.PRIMARY and group.primary.port in self._avoided:
            choice = Choice.BACKUP
        if choice is Choice.BACKUP and group.backup and group.backup.port in self._avoided:
            choice = Choice.UNDERLAY
        return schema.action_fields(group, choice, self._exits)

    def _awaited(self, names: Mapping[Match, str]) -> list[Failure]:
        """Wait for the status of new rules; return failures for those that were not accepted."""
        waiting, failures = deque(names.items()), list[Failure]()
        deadline = time.monotonic() + self._patience
        while waiting:
            asked = [waiting.popleft() for _ in range(min(_WINDOW, len(waiting)))]
            told = list(zip(asked, self._statuses(name for _, name in asked), strict=True))
            failures += [self._not_taken(row[0]) for row, s in told if s == schema.INACTIVE]
            open_ = [row for row, status in told if status not in _FINAL]
            if len(open_) < len(asked):
                deadline = time.monotonic() + self._patience
                waiting.extendleft(reversed(open_))
            else:  # later rules may be done already
                waiting.extend(open_)
            if open_:
                if time.monotonic() > deadline:
                    break
                time.sleep(_POLL_SECONDS)
        text = f"the switch says nothing of its rule for {self._patience:g} s"
        return failures + [Failure(match, Reason.BACKEND, text) for match, _ in waiting]

    def _not_taken(self, match: Match) -> Failure:
        if self._available() == 0:
            text = "the chip has no room for another rule"
            return Failure(match, Reason.TABLE_FULL, text)
        text = "the switch says Inactive: has its next hop an ARP entry? see its syslog"
        return Failure(match, Reason.BACKEND, text)

    def _statuses(self, names: Iterable[str]) -> Iterator[str | None]:
        for part in _parts(list(names)):
            with self._state.pipeline(transaction=False) as pipe:
                for name in part:
                    pipe.hget(f"{schema.STATUS}{name}", "status")
                yield from pipe.execute()

    def _refused(self, batch: Batch) -> Iterator[Failure]:
        """Yield failures of sets that this switch cannot hold."""
        known, good = set(self._exits), list[Match]()
        for match, group in batch.sets.items():
            hops = [hop for hop in (group.primary, group.backup) if hop is not None]
            strange = next((hop for hop in hops if hop.port not in known), None)
            fault = schema.address_fault(match, self._addresses)
            if strange is not None:
                text = f"no link to {strange.node} key {strange.key}, or none with an address"
                yield Failure(match, Reason.UNKNOWN_NEXT_HOP, text)
            elif fault:
                yield Failure(match, Reason.UNSUPPORTED_MATCH, fault)
            else:
                good.append(match)
        new = [match for match in good if match not in self._entries]
        leaving = sum(match in self._entries for match in set(batch.deletes) - set(good))
        room = self.table_size - len(self._entries) + leaving
        if self.table_size and len(new) > room:
            text = f"the table holds {self.table_size} entries and is full"
            for match in new[max(room, 0) :]:
                yield Failure(match, Reason.TABLE_FULL, text)

    def _choose(self, group: Group, choice: Choice) -> None:
        if choice is Choice.PRIMARY:
            self._choices.pop(group, None)
        else:
            self._choices[group] = choice

    def steer(self, steering: Steering) -> None:
        """Change the actions of all rules of the groups that move."""
        for group, choice in steering.choices.items():
            if group in self._of_group:
                self._choose(group, choice)
        with self._lock:
            avoided, self._avoided = self._avoided, set()
            groups = set(steering.choices) | {g for g in self._of_group if _uses(g, avoided)}
        self._repair(self._rules(group for group in groups if group in self._of_group))

    def avoid(self, hops: Collection[tuple[str, str]]) -> None:
        """Let no rule lead to these next hops, neither an existing one nor one being written."""
        with self._lock:
            self._avoided |= set(hops)
            rules = self._rules(group for group in self._of_group if _uses(group, hops))
            rules += [(name, group) for name, group in self._fresh.values() if _uses(group, hops)]
            self._repair(rules)

    def plug(self, port: tuple[str, str], way_out: Exit) -> None:
        """Let rules leave by this port and address over a link, from the next ``refresh`` on.

        This may be called while another thread is in another method.
        """
        if self._exits.get(port) != way_out:
            self._exits = {**self._exits, port: way_out}
            self._owed = True

    def _rules(self, groups: Iterable[Group]) -> list[tuple[str, Group]]:
        return [(self._names[match], group) for group in groups for match in self._of_group[group]]

    def _repair(self, rules: Sequence[tuple[str, Group]]) -> None:
        try:
            self._act(rules)
        except RedisError as error:
            self._owed = True
            _log.warning("repair not written: Redis is away", rules=len(rules), why=str(error))

    def _act(self, rules: Sequence[tuple[str, Group]]) -> None:
        """Update the action of rules that exist to what their groups do now."""
        keys = defaultdict[Group, list[str]](list)
        for name, group in rules:
            keys[group].append(f"{schema.RULES}{name}")
        alike = defaultdict[tuple[str, str], list[str]](list)
        for group, mine in keys.items():
            ((field, value),) = self._action(group).items()
            alike[field, value] += mine
        for (field, value), all_keys in alike.items():
            other = schema.ACTION if field == schema.REDIRECT else schema.REDIRECT
            for part in _parts(all_keys):
                self._change(keys=part, args=[field, value, other])

    def set_overlay(self, *, withdrawn: bool) -> str:
        """Bind the table to no port, or to all ports again, in one write."""
        try:
            self._config.hset(schema.TABLE_KEY, "ports@", "" if withdrawn else self._ports)
        except RedisError as error:
            return f"SONiC's Redis does not answer: {error}"
        self.withdrawn = withdrawn
        return ""

    def read_back(self) -> Mapping[Match, Group]:
        """Return the entries whose rules exist; nothing while Redis is away."""
        try:
            present = self._present()
        except RedisError as error:
            _log.warning("rules not read: Redis is away", why=str(error))
            return {}
        return {m: group for m, group in self._entries.items() if self._names[m] in present}

    @property
    def addresses(self) -> Mapping[str, str]:
        """Addresses of the NICs that entries name."""
        nics = {nic for match in self._entries for nic in match[:2]}
        return {nic: self._addresses[nic] for nic in nics}

    def refresh(self) -> None:
        """Write again what others have removed, and what could not be written before."""
        owed, self._owed = self._owed, False
        try:
            self._bind()
            self._read_room()
            present = self._present()
            lost = {m: name for m, name in self._names.items() if name not in present}
            self._write(lost, self._entries)
            if owed:
                kept = [match for match in self._entries if match not in lost]
                self._act([(self._names[match], self._entries[match]) for match in kept])
                self._remove(present - set(self._names.values()))
        except RedisError as error:
            self._owed |= owed
            _log.debug("rules not refreshed: Redis is away", why=str(error))

    def counters(self) -> Mapping[Match, Count]:
        """Return nothing, because the backend does not claim COUNTERS."""
        return {}

    def close(self) -> None:
        """Close the connections. Rules stay."""
        for database in (self._config, self._state, self._counters):
            database.close()

    def _check_capability(self) -> None:
        told = self._state.hget(schema.CAPABILITY_KEY, "action_list") or ""
        if schema.REDIRECT not in {word.strip() for word in told.split(",")}:
            raise UnavailableSwitchError(
                f"the switch does not say that rules may redirect ({schema.CAPABILITY_KEY} of"
                f" STATE_DB: {told or 'empty'}): its chip or its release cannot"
            )

    def _bind(self) -> None:
        """Create the table and its type if they are missing; an existing binding stays."""
        if not self._config.exists(schema.TYPE_KEY):
            self._config.hset(schema.TYPE_KEY, mapping=schema.TYPE)
        bound = self._config.hget(schema.TABLE_KEY, "ports@")
        if bound is None:
            ports = "" if self.withdrawn else self._ports
            self._config.hset(schema.TABLE_KEY, mapping=schema.table_fields(ports))
        else:
            self.withdrawn = bound == ""

    def _read_room(self) -> None:
        available = self._available()
        room = 0 if available is None else max(1, len(self._names) + available)
        both = [size for size in (self._asked_size, room) if size]
        self.table_size = min(both, default=0)

    def _available(self) -> int | None:
        """Return the room for rules in the chip's fullest table; None if it does not say."""
        keys = list(self._counters.scan_iter(match=schema.ROOM_KEYS, count=_CHUNK))
        told = [self._counters.hget(key, schema.ROOM_FIELD) for key in keys]
        return min((int(one) for one in told if one is not None), default=None)

    def _present(self) -> set[str]:
        """Return names of rules in our table that have a note; other rules are left alone."""
        found = self._config.scan_iter(match=f"{schema.RULES}*", count=_CHUNK)
        names = {str(key).removeprefix(schema.RULES) for key in found}
        return names & set(self._state.hkeys(schema.NOTES_KEY))

    def _load(self) -> None:
        """Take over the rules of an earlier agent, the newest per entry; remove incomplete ones."""
        notes = self._state.hgetall(schema.NOTES_KEY)
        present, dropped, groups = self._present(), set(notes), dict[str, Group]()
        for name in sorted(present, key=_number):
            try:
                match, group, addresses = read(notes[name])
            except ValueError as error:
                _log.warning("rule left alone: its note cannot be read", rule=name, why=str(error))
                dropped.discard(name)
                continue
            shared = groups.setdefault(notes[name].partition('"primary"')[2], group)
            self._forget(match)
            self._addresses |= addresses
            self._entries[match], self._names[match] = shared, name
            self._of_group[shared].add(match)
            self._adopt_choice(name, shared)
        self._numbers = count(1 + max(map(_number, notes), default=0))
        self._remove(dropped - set(self._names.values()))

    def _adopt_choice(self, name: str, group: Group) -> None:
        told = self._config.hget(f"{schema.RULES}{name}", schema.REDIRECT)
        for choice in (Choice.PRIMARY, Choice.BACKUP):
            hop = group.primary if choice is Choice.PRIMARY else group.backup
            known = self._exits.get(hop.port) if hop is not None else None
            if known is not None and known.redirect == told:
                self._choose(group, choice)
                return
        self._choose(group, Choice.UNDERLAY)


def _uses(group: Group, hops: Collection[tuple[str, str]]) -> bool:
    return group.primary.port in hops or bool(group.backup and group.backup.port in hops)


_CHANGE = """
for _, key in ipairs(KEYS) do
    if redis.call('EXISTS', key) == 1 then
        redis.call('HSET', key, ARGV[1], ARGV[2])
        redis.call('HDEL', key, ARGV[3])
    end
end
"""
"""Changes the action of rules in one step, and only of rules that exist, so that a rule that was
removed does not come back incomplete."""
_FINAL = (schema.ACTIVE, schema.INACTIVE)


def _number(name: str) -> int:
    digits = name.removeprefix("e")
    return int(digits) if digits.isdecimal() else 0


def _parts(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Return the rows in chunks."""
    return (rows[at : at + _CHUNK] for at in range(0, len(rows), _CHUNK))
