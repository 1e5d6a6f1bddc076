"""Reservations: hosts that are kept for a job to come, for so long.

A reservation is a field, and each of its hosts is one that says whose it is. Whoever takes a host
guards that field, so that of two who want it one is refused. A reservation that is over counts as
gone from that moment on; its fields are swept by whoever reserves next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import orjson

from heddle_controller.model.errors import Problem
from heddle_controller.state.audit_texts import reservation_text
from heddle_controller.state.change import NEITHER, Change, Guard, Stamp, entry_of
from heddle_controller.state.errors import AlreadyExists, FailedPrecondition, NotFound
from heddle_controller.state.ids import MAX_PROBLEMS
from heddle_controller.state.records import Reservation
from heddle_controller.state.view import HOST, View, check_known, check_revision

RESERVATION, HELD = "reservation", "held"


class Taken(NamedTuple):
    """What a job that takes hosts writes and guards of reservations."""

    guards: tuple[Guard, ...]
    sets: Mapping[str, bytes | None]


def reserve(
    view: View, wanted: Reservation, checked: int, stamp: Stamp
) -> tuple[Change, Reservation]:
    """Keep hosts. Raises as ``WorkStore.reserve`` tells."""
    check_revision(view, checked)
    there = _found(view, wanted.name)
    if there is not None and not there.over(stamp.now):
        raise AlreadyExists(_name(view.name, wanted.name))
    over = [one for one in _all(view) if one.over(stamp.now)]
    problems = [
        Problem(f"host {host!r}", why)
        for host in wanted.hosts
        if (why := _job_of(view, host) or _holder(view, host, stamp.now))
    ]
    if problems:
        raise FailedPrecondition(f"reservation {wanted.name!r}", *problems[:MAX_PROBLEMS])
    raw = reservation_json(wanted)
    sets: dict[str, bytes | None] = {}
    for one in over:
        sets |= _ended(view, one)
    sets |= dict.fromkeys(map(_held, wanted.hosts), wanted.name.encode())
    sets[_field(wanted.name)] = raw
    change = Change(
        fabric=view.name,
        moves=NEITHER,
        time=stamp.now,
        guards=(
            *(view.guard(field) for field in sets),
            *(view.guard(f"{HOST}/{host}") for host in wanted.hosts),
        ),
        sets=sets,
        audit=entry_of(
            stamp,
            "reserve",
            _name(view.name, wanted.name),
            ("", reservation_text(wanted)),
        ),
        answer=raw,
    )
    return change, wanted


def release(view: View, name: str, stamp: Stamp) -> Change:
    """End a reservation. Raises ``NotFound``, also for one that is over."""
    check_known(view)
    old = _found(view, name)
    if old is None or old.over(stamp.now):
        raise NotFound(_name(view.name, name))
    sets = _ended(view, old)
    return Change(
        fabric=view.name,
        moves=NEITHER,
        time=stamp.now,
        guards=tuple(view.guard(field) for field in sets),
        sets=sets,
        audit=entry_of(stamp, "release", _name(view.name, name), (reservation_text(old), "")),
    )


def reservations_of(view: View, now: float) -> list[Reservation]:
    """Those that are not over, by name."""
    check_known(view)
    return [one for one in _all(view) if not one.over(now)]


def taken(view: View, job: str, hosts: Iterable[str], redeems: str, stamp: Stamp) -> Taken:
    """What is written where a job takes hosts, and ends a reservation if it names one.

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
    hosts = list(hosts)
    problems = [
        Problem(f"host {host!r}", why)
        for host in hosts
        if (why := _holder(view, host, stamp.now, but=redeems))
    ]
    if problems:
        raise FailedPrecondition(f"job {job!r}", *problems[:MAX_PROBLEMS])
    guards = [view.guard(_held(host)) for host in hosts]
    sets: dict[str, bytes | None] = {field: None for field, value in guards if value is not None}
    if mine is not None:
        ended = _ended(view, mine)
        guards += [view.guard(field) for field in ended]
        sets |= ended
    return Taken(tuple(dict(guards).items()), sets)


def reservation_json(one: Reservation) -> bytes:
    """A reservation as one JSON object."""
    return orjson.dumps(one)


def parse_reservation(content: bytes) -> Reservation:
    """What ``reservation_json`` gave."""
    fields = orjson.loads(content)
    return Reservation(**{**fields, "hosts": tuple(fields["hosts"])})


def _all(view: View) -> list[Reservation]:
    return list(view.all(RESERVATION, parse_reservation).values())


def _found(view: View, name: str) -> Reservation | None:
    return view.get(RESERVATION, name, parse_reservation)


def _job_of(view: View, host: str) -> str:
    """Why a host cannot be had, where a job has it."""
    owner = view.raw(f"{HOST}/{host}")
    return f"is in use by job {owner.decode()!r}; choose others" if owner is not None else ""


def _holder(view: View, host: str, now: float, but: str = "") -> str:
    """Why a host cannot be had, where a reservation that is not over has it."""
    raw = view.raw(_held(host))
    if raw is None or raw.decode() == but:
        return ""
    holder = _found(view, raw.decode())
    if holder is None or holder.over(now):
        return ""
    until = _clock(holder.end_time)
    return f"is reserved by {holder.name!r} until {until}; redeem that, or choose others"


def _ended(view: View, one: Reservation) -> dict[str, bytes | None]:
    """The fields of a reservation, to be taken away; hosts that others have by now stay."""
    own = one.name.encode()
    held = [_held(host) for host in one.hosts if view.raw(_held(host)) == own]
    return dict.fromkeys([_field(one.name), *held])


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _held(host: str) -> str:
    return f"{HELD}/{host}"


def _field(name: str) -> str:
    return f"{RESERVATION}/{name}"


def _name(fabric: str, name: str) -> str:
    return f"fabrics/{fabric}/reservations/{name}"
