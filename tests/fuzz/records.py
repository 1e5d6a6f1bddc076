"""Targets: what a store gives back, and what the kernel answers.

Both are trusted to be intact, but are read as if they were not. A damaged value must be reported as
such, and never be read as another job, plan or fabric. Values of columns have a checksum, which
would detect nearly all damage before anything is read, so most of the damage is done below it.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import orjson

from heddle_agent import netlink
from heddle_agent.watch import rtnetlink
from heddle_controller.state.codec import container, intent, plans
from heddle_controller.state.codec.container import MAGIC, DamagedError
from heddle_controller.state.codec.intent import States, unpack_states
from heddle_controller.state.records import JobFacts, JobRecord, JobState
from tests.fuzz.mutate import spoilt
from tests.fuzz.target import Target, check
from tests.support.store_samples import clos, job, plan_of, program_of
from tests.support.store_samples import demands as demands_of

FABRIC = clos()
MOST_RAW = 1 << 20
"""Most bytes of a value that is decompressed to be damaged below the checksum."""


def _below(content: bytes, chance: random.Random) -> bytes:
    """Damage a value in a way that its checksum does not detect."""
    try:
        raw = zlib.decompressobj().decompress(content[len(MAGIC) :], MOST_RAW)
    except zlib.error:
        return content
    return MAGIC + zlib.compress(spoilt(chance, [raw], ()), 1)


def _packed(
    name: str, unpack: Callable[[bytes], Any], pack: Callable[[Any], bytes], good: bytes
) -> Target:
    """Return a target for a value of columns.

    What is accepted must be the same after it is written and read again.
    """

    def run(content: bytes) -> bool:
        try:
            made = unpack(content)
            again = pack(made)
        except DamagedError:
            return False
        check(pack(unpack(again)) == again, "what was taken survives a round trip")
        return True

    def make(chance: random.Random) -> bytes:
        return _below(good, chance) if chance.random() < 0.7 else spoilt(chance, [good], ())

    return Target(name, run, [good], make, _below, weight=1)


def _text(
    name: str, parse: Callable[[bytes], Any], write: Callable[[Any], Any], good: bytes
) -> Target:
    """Return a target for a value in JSON.

    Every field that is read must be in the value unchanged. Fields of later versions may be beside
    them.
    """

    def run(content: bytes) -> bool:
        try:
            made = parse(content)
        except (DamagedError, KeyError, TypeError, ValueError):  # as in ``View.get``
            return False
        check(_within(write(made), orjson.loads(content)), "what was read is what was written")
        return True

    return Target(name, run, [good], weight=1)


def _within(made: Any, there: Any) -> bool:
    """Whether all of a value is contained in another one."""
    if isinstance(made, dict) and isinstance(there, dict):
        return all(key in there and _within(value, there[key]) for key, value in made.items())
    if isinstance(made, list) and isinstance(there, list) and len(made) == len(there):
        return all(_within(a, b) for a, b in zip(made, there, strict=True))
    numbers = all(type(one) in (int, float) for one in (made, there))
    return bool((numbers or type(made) is type(there)) and made == there)


def _again(content: bytes) -> Any:
    return orjson.loads(content)


def _kept() -> list[Target]:
    plan = plan_of(FABRIC)
    packed = intent.pack_structure(FABRIC.structure, "sample")
    states = States(
        FABRIC.link_state,
        FABRIC.node_state,
        np.full(len(FABRIC.link_state), 0.5),
    )
    record = JobRecord(
        job=job(), etag="e1", create_time=1.5, facts=JobFacts("e1", JobState.ACCEPTED)
    )
    return [
        _packed(
            "stored demands",
            intent.unpack_demands,
            intent.pack_demands,
            intent.pack_demands(demands_of(("n0.0", "n1.0"), ("n0.1", "n1.1"))),
        ),
        _packed(
            "stored plan",
            lambda content: plans.unpack_plan(content, FABRIC.structure),
            lambda made: plans.PlanPacker().pack(*made),
            plans.PlanPacker().pack(plan, program_of(plan, 1, 1)),
        ),
        _packed("stored states", unpack_states, States.packed, states.packed()),
        _packed(
            "stored columns",
            container.unpack,
            lambda made: container.pack(*made),
            states.packed(),
        ),
        _text(
            "stored record of a job",
            intent.parse_record,
            lambda made: _again(orjson.dumps(made)),
            orjson.dumps(record),
        ),
        Target("stored structure", _structure(packed), [packed.body], weight=1),
    ]


def _structure(packed: intent.PackedStructure) -> Callable[[bytes], bool]:
    """Check that only the content that was stored under a digest is accepted for it."""

    def run(content: bytes) -> bool:
        try:
            made = intent.unpack_structure(content, packed.digest)
        except DamagedError:
            return False
        check(made.nodes.ids == packed.structure.nodes.ids, "it is the structure that was kept")
        check(made.links.key == packed.structure.links.key, "with its links")
        return True

    return run


def _interfaces(content: bytes) -> bool:
    """Check that nothing the kernel may send breaks the watcher of links."""
    found = [
        rtnetlink._interface(*message)
        for message in netlink.messages(content)
        if rtnetlink._tells(*message)
    ]
    return bool(found)


def _answers(content: bytes) -> bool:
    """Check that no answer of the kernel is read forever, or beyond its end."""
    total = 0
    try:
        errors = list(netlink._errors(content))
    except struct.error:  # cut off by the kernel, so the call fails
        errors = []
    for message in netlink.messages(content):
        total += len(message.body)
        parts = list(netlink.each_attribute(message.body))
        check(sum(len(part) for _, part in parts) <= len(message.body), "attributes are inside")
    check(total <= len(content), "messages are inside")
    return bool(total or errors)


def _link_message() -> Iterator[bytes]:
    head = struct.pack("=BxHiII", 0, 1, 7, 0x10001, 0)
    body = head + netlink.text(3, "eth0") + netlink.text(20, "to s0")
    yield netlink.framed(16, 0, 1, body)
    error = struct.pack("=i", -2) + netlink.framed(16, 0, 1, b"")
    yield netlink.framed(2, 0, 1, error)


def targets() -> list[Target]:
    """Return all targets of this module."""
    told = list(_link_message())
    return [
        *_kept(),
        Target("links of the kernel", _interfaces, [*told, b"".join(told)], weight=2),
        Target("answers of the kernel", _answers, [*told, b"".join(told)], weight=2),
    ]
