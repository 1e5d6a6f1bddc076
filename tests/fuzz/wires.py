"""Messages of any type, filled at random with odd and almost valid values."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

STRINGS = (
    "", "n0.0", "n1.0", "n0.1", "n1.1", "l0", "l1", "s0", "s1", "h0.0", "h1.0", "j1", "0", "1",
    "fabrics/f1", "fabrics/f1/jobs/j1", "fabrics/f1/demands/d1", "fabrics/f1/plan",
    "fabrics/f1/overlay", "fabrics/none", "fabrics//x", "é", "\x00", "a" * 70, "10.0.0.1",
    "nic0", "far0", "spine0", "spine1", "d/f0", "10.0.0.1:7402", "heddle", "-1", "\u202e",
)  # fmt: skip
FLOATS = (0.0, -0.0, -1.0, 1.0, 0.5, 400.0, 1e300, 1e-320, float("nan"), float("inf"), -1e9)
KIND = FieldDescriptor
Sent = TypeVar("Sent", bound=Message)
Vary = Callable[[bytes, random.Random], bytes]
EDGES = (0, 0, 1, 1, 2, 3, 4, 7, 100, 4791, 65535, 65536)


def message(descriptor: Descriptor, chance: random.Random, depth: int = 4) -> Message:
    """Return a message with some of its fields set at random."""
    made: Any = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if chance.random() < 0.3 or (field.message_type is not None and depth == 0):
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        count = chance.choice((0, 1, 1, 2, 3, 8)) if field.is_repeated else 1
        for _ in range(count):
            _set(made, field, chance, depth)
    return made  # type: ignore[no-any-return] # made of a descriptor at run time


def _set(made: Any, field: FieldDescriptor, chance: random.Random, depth: int) -> None:
    here = getattr(made, field.name)
    if field.message_type is not None:
        part = message(field.message_type, chance, depth - 1)
        (here.add() if field.is_repeated else here).CopyFrom(part)
    elif field.is_repeated:
        here.append(scalar(field, chance))
    else:
        setattr(made, field.name, scalar(field, chance))


def scalar(field: FieldDescriptor, chance: random.Random) -> Any:  # noqa: PLR0911 - a table
    """Return a random value for a field that holds no message."""
    match field.type:
        case KIND.TYPE_STRING:
            return chance.choice(STRINGS)
        case KIND.TYPE_BYTES:
            return chance.choice((b"", b"\0" * 32, chance.randbytes(chance.randrange(40))))
        case KIND.TYPE_BOOL:
            return chance.random() < 0.5
        case KIND.TYPE_DOUBLE | KIND.TYPE_FLOAT:
            return chance.choice(FLOATS)
        case KIND.TYPE_ENUM:
            return chance.choice((0, 1, 1, 2, 2, 3, 4, 99, -1))
        case KIND.TYPE_UINT32:
            return chance.choice((*EDGES, 2**31, 2**32 - 1))
        case KIND.TYPE_UINT64:
            return chance.choice((*EDGES, 2**53, 2**63 - 1, 2**63, 2**64 - 1))
        case KIND.TYPE_INT32:
            return chance.choice((*EDGES, -1, -(2**31), 2**31 - 1))
        case _:
            return chance.choice((*EDGES, -1, -(2**63), 2**63 - 1))


def disturbed(good: Message, chance: random.Random) -> Message:
    """Return a copy of a good message in which a few fields are changed."""
    made: Any = type(good)()
    made.CopyFrom(good)
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        part = made
        while True:
            field = chance.choice(part.DESCRIPTOR.fields)
            held = getattr(part, field.name)
            if field.message_type is None or not (held if field.is_repeated else True):
                break
            part = chance.choice(held) if field.is_repeated else held
        _disturb(part, field, chance)
    return made  # type: ignore[no-any-return] # as above


def _disturb(part: Any, field: FieldDescriptor, chance: random.Random) -> None:
    held = getattr(part, field.name)
    if field.message_type is not None:
        _set(part, field, chance, 2)
    elif not field.is_repeated:
        setattr(part, field.name, scalar(field, chance))
    elif held and chance.random() < 0.7:
        held[chance.randrange(len(held))] = scalar(field, chance)
    elif held and chance.random() < 0.5:
        del held[chance.randrange(len(held))]
    else:
        held.append(scalar(field, chance))


def varied(kind: type[Any], make: Callable[[random.Random], bytes]) -> Vary:
    """Return a function that changes a given message, or makes a new one if it cannot be parsed."""

    def vary(content: bytes, chance: random.Random) -> bytes:
        before = kind()
        try:
            before.ParseFromString(content)
        except DecodeError:
            return make(chance)
        return disturbed(before, chance).SerializeToString()

    return vary


def framed(parts: Iterable[bytes]) -> bytes:
    """Join messages into one input, each preceded by its length in two bytes.

    Messages of 65,536 bytes and more are left out.
    """
    return b"".join(len(one).to_bytes(2, "big") + one for one in parts if len(one) < 65536)


def parts_of(content: bytes) -> list[bytes]:
    """Split an input made by ``framed`` into its messages."""
    parts = []
    while len(content) >= 2:
        end = 2 + int.from_bytes(content[:2], "big")
        parts.append(content[2:end])
        content = content[end:]
    return parts


def messages_of(kind: type[Sent], content: bytes) -> list[Sent] | None:
    """Return the parsed messages of such an input; None if one cannot be parsed."""
    messages = []
    for part in parts_of(content):
        message = kind()
        try:
            message.ParseFromString(part)
        except DecodeError:
            return None
        messages.append(message)
    return messages
