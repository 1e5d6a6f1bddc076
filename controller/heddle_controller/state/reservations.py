"""Reservations: hosts that are kept for a job to come, for so long.

A reservation is a field, and so is who holds what of each of its hosts (``holds``). A reservation
that is over counts as gone from that moment on; its fields are swept by whoever reserves next.

Who holds which host, or which GPUs of it: one field a host, with all who hold some of it.

Whoever takes or leaves a part of a host guards the field of the whole host, so that of two who
want the same GPUs one is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import orjson

from heddle_controller.model.errors import MAX_PROBLEMS, Problem
from heddle_controller.model.job import Gpus, common, gpus_words, in_use
from heddle_controller.state.audit import reservation_text
from heddle_controller.state.codec.container import parser
from heddle_controller.state.errors import AlreadyExists, FailedPrecondition, NotFound
from heddle_controller.state.records import Reservation
from heddle_controller.state.view import (
    HOST_KIND,
    NEITHER,
    Change,
    Guard,
    Stamp,
    View,
    check_known,
    entry_of,
)


def parse_holders(content: bytes) -> Mapping[str, Gpus]:
    """Names, and what each holds; no GPUs are the whole host."""
    return {name: tuple(gpus) for name, gpus in orjson.loads(content).items()}


class Holds:
    """The holders of hosts, of one kind, as they are and as they are to be."""

    def __init__(self, view: View, kind: str) -> None:
        """``kind`` of fields: those of jobs, or those of reservations."""
        self._view, self._kind = view, kind
        self._looked: dict[str, Mapping[str, Gpus]] = {}
        self._wanted: dict[str, dict[str, Gpus]] = {}

    def of(self, host: str) -> Mapping[str, Gpus]:
        """The jobs and reservations that hold some of a host."""
        if host in self._wanted:
            return self._wanted[host]
        if host not in self._looked:
            self._looked[host] = self._view.get(self._kind, host, parse_holders) or {}
        return self._looked[host]

    def put(self, host: str, holder: str, gpus: Gpus | None) -> None:
        """A holder has this of a host from now on; None: nothing any more."""
        known = self.of(host)
        if gpus is None and holder not in known:
            return
        wanted = {name: part for name, part in known.items() if name != holder}
        if gpus is not None:
            wanted[holder] = gpus
        self._wanted[host] = wanted

    def guards(self) -> tuple[Guard, ...]:
        """Guards that all that was looked at is still so."""
        hosts = dict.fromkeys([*self._looked, *self._wanted])
        return tuple(self._view.guard(f"{self._kind}/{host}") for host in hosts)

    def sets(self) -> dict[str, bytes | None]:
        """The fields that change."""
        fields = {
            f"{self._kind}/{host}": orjson.dumps(wanted, option=orjson.OPT_SORT_KEYS)
            if wanted
            else None
            for host, wanted in self._wanted.items()
        }
        return {field: value for field, value in fields.items() if self._view.raw(field) != value}


_RESERVATION, HELD = "reservation", "held"


class Taken(NamedTuple):
    """What a job that takes hosts writes and guards of reservations."""

    guards: tuple[Guard, ...]
    sets: Mapping[str, bytes | None]


def reserve_hosts(view: View, wanted: Reservation, stamp: Stamp) -> tuple[Change, Reservation]:
    """Keep hosts. Raises as ``Store.reserve`` tells."""
    check_known(view)
    there = _found(view, wanted.name)
    if there is not None and not there.over(stamp.now):
        raise AlreadyExists(_name(view.name, wanted.name))
    jobs, held = Holds(view, HOST_KIND), Holds(view, HELD)
    standing = _standing(view, stamp.now)
    problems = [
        Problem(f"host {host!r}", why)
        for host, gpus in wanted.held.items()
        if (why := _job_of(jobs, host, gpus) or _holder(held, host, gpus, standing))
    ]
    if problems:
        raise FailedPrecondition(f"reservation {wanted.name!r}", *problems[:MAX_PROBLEMS])
    over = [one for one in _all(view) if one.over(stamp.now)]
    for one in over:
        _end(held, one)
    for host, gpus in wanted.held.items():
        held.put(host, wanted.name, gpus)
    raw = orjson.dumps(wanted)
    fields = dict.fromkeys([*(_field(one.name) for one in over), _field(wanted.name)])
    change = Change(
        fabric=view.name,
        moves=NEITHER,
        time=stamp.now,
        guards=(*(view.guard(field) for field in fields), *held.guards(), *jobs.guards()),
        sets={**fields, **held.sets(), _field(wanted.name): raw},
        audit=entry_of(
            stamp,
            "reserve",
            _name(view.name, wanted.name),
            ("", reservation_text(wanted)),
        ),
        answer=raw,
    )
    return change, wanted


def release_hosts(view: View, name: str, stamp: Stamp) -> Change:
    """End a reservation. Raises ``NotFound``, also for one that is over."""
    check_known(view)
    old = _found(view, name)
    if old is None or old.over(stamp.now):
        raise NotFound(_name(view.name, name))
    held = Holds(view, HELD)
    _end(held, old)
    return Change(
        fabric=view.name,
        moves=NEITHER,
        time=stamp.now,
        guards=(view.guard(_field(name)), *held.guards()),
        sets={_field(name): None, **held.sets()},
        audit=entry_of(stamp, "release", _name(view.name, name), (reservation_text(old), "")),
    )


def reservations_of(view: View, now: float) -> list[Reservation]:
    """Those that are not over, by name."""
    check_known(view)
    return [one for one in _all(view) if not one.over(now)]


def taken(view: View, job: str, come: Mapping[str, Gpus], redeems: str, stamp: Stamp) -> Taken:
    """What is written where a job takes hosts, and ends a reservation if it names one.

    Args:
        view: Of now.
        job: Its name.
        come: What it takes of each host that it did not have.
        redeems: Name of a reservation; empty: none.
        stamp: Of now.

    Raises:
        FailedPrecondition: another reservation has hosts; or there is none of that name, or it is
            over.
    """
    mine = _found(view, redeems) if redeems else None
    if redeems and (mine is None or mine.over(stamp.now)):
        why = "is over or redeemed, or never was"
        if mine is not None:
            why = f"is over since {_clock(mine.end_time)}"
        cure = "reserve hosts again, or submit without it"
        raise FailedPrecondition(
            f"job {job!r}", Problem(f"reservation {redeems!r}", f"{why}; {cure}")
        )
    held, standing = Holds(view, HELD), _standing(view, stamp.now, but=redeems)
    problems = [
        Problem(f"host {host!r}", why)
        for host, gpus in come.items()
        if (why := _holder(held, host, gpus, standing))
    ]
    if problems:
        raise FailedPrecondition(f"job {job!r}", *problems[:MAX_PROBLEMS])
    for host, gpus in come.items():
        for name, theirs in [*held.of(host).items()]:
            if common(gpus, theirs) is not None:  # over, or redeemed
                held.put(host, name, None)
    if mine is None:
        return Taken(held.guards(), held.sets())
    _end(held, mine)
    return Taken(
        (view.guard(_field(redeems)), *held.guards()), {**held.sets(), _field(redeems): None}
    )


parse_reservation = parser(Reservation, "reservation")


def _all(view: View) -> list[Reservation]:
    return list(view.all(_RESERVATION, parse_reservation).values())


def _found(view: View, name: str) -> Reservation | None:
    return view.get(_RESERVATION, name, parse_reservation)


def _job_of(jobs: Holds, host: str, gpus: Gpus) -> str:
    """Why something of a host cannot be had, where a job has it."""
    found = in_use(gpus, jobs.of(host))
    return f"{found[1]} by job {found[0]!r}; choose others" if found else ""


def _holder(held: Holds, host: str, gpus: Gpus, standing: Mapping[str, Reservation]) -> str:
    """Why something of a host cannot be had, where a reservation that stands has it."""
    for name, theirs in held.of(host).items():
        shared = common(gpus, theirs)
        if shared is not None and name in standing:
            until = _clock(standing[name].end_time)
            return (
                f"{gpus_words(shared)}reserved by {name!r} until {until}; "
                "redeem that, or choose others"
            )
    return ""


def _standing(view: View, now: float, but: str = "") -> dict[str, Reservation]:
    """Reservations that are not over, but for one."""
    return {one.name: one for one in _all(view) if one.name != but and not one.over(now)}


def _end(held: Holds, one: Reservation) -> None:
    """Take a reservation's hosts from it; what others have by now stays."""
    for host in one.hosts:
        held.put(host, one.name, None)


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _field(name: str) -> str:
    return f"{_RESERVATION}/{name}"


def _name(fabric: str, name: str) -> str:
    return f"fabrics/{fabric}/reservations/{name}"
