"""Target: pushes as columns, decoded a second time by simple steps that follow the contract.

``decode_push`` reads whole columns, and looks for the row at fault only when something fails. Here
every rule of ``OperationBatch`` is checked one by one. Both must agree, for batches that are
accepted and for those that are refused.
"""

from __future__ import annotations

import random
import struct
from typing import Any

from heddle.v1 import agent_pb2 as pb
from heddle_agent.session.decode import MalformedPushError, decode_push
from tests.fuzz.target import check
from tests.fuzz.wires import disturbed
from tests.support.agent_controllers import numbers

TABLES = (
    ("sources", "destinations", "source_ports", "destination_ports", "ways"),
    ("way_primaries", "way_backups", "way_risks", "way_backup_risks"),
    ("hop_nodes", "hop_keys", "hop_addresses"),
    ("link_sources", "link_targets", "link_keys"),
    ("nics", "nic_addresses"),
    ("risk_ends",),
    ("risk_links",),
)
"""Columns of one length each; an empty ``hop_addresses`` stands for zeros."""
COLUMNS = [name for table in TABLES for name in table]
NAMES = "name_numbers"


class RefusedError(Exception):
    """The contract requires that this is refused."""


def must(holds: object) -> None:
    """Raise ``RefusedError`` unless the condition holds."""
    if not holds:
        raise RefusedError


def read(batch: pb.OperationBatch) -> dict[str, list[int]]:
    """Return the columns, whose lengths must fit. Raise ``RefusedError`` if they do not."""
    columns = {}
    for name in COLUMNS:
        content = getattr(batch, name)
        must(len(content) % 4 == 0)
        columns[name] = list(struct.unpack(f"<{len(content) // 4}I", content))
    if not columns["hop_addresses"]:
        columns["hop_addresses"] = [0] * len(columns["hop_nodes"])
    for table in TABLES:
        must(len({len(columns[name]) for name in table}) == 1)
    return columns


def given(batch: pb.OperationBatch) -> dict[int, str]:
    """Return the names of a batch by number, in a session without earlier names."""
    content = batch.name_numbers
    if not content:
        return dict(enumerate(batch.names))
    must(len(content) == 4 * len(batch.names))
    known: dict[int, str] = {}
    for (number,), name in zip(struct.iter_unpack("<I", content), batch.names, strict=True):
        must(known.setdefault(number, name) == name)
    return known


def meant(batch: pb.OperationBatch) -> list[tuple[Any, ...]]:
    """Return match and group of each operation, and all addresses. Raise ``RefusedError``."""
    columns = read(batch)

    known = given(batch)

    def rows(*names: str) -> list[tuple[int, ...]]:
        return list(zip(*(columns[name] for name in names), strict=True))

    def named(row: int) -> str:
        must(row in known)
        return known[row]

    def one(row: int, table: list[Any], none: object) -> Any:
        must(row <= len(table))
        return table[row - 1] if row else none

    hops = [
        (named(node), named(key), named(address - 1) if address else "")
        for node, key, address in rows("hop_nodes", "hop_keys", "hop_addresses")
    ]
    links = []
    for source, target, key in rows(*TABLES[3]):
        low, high = sorted((named(source), named(target)))
        links.append((low, high, named(key)))
    groups, begin = [], 0
    for (end,) in rows("risk_ends"):
        must(begin <= end <= len(columns["risk_links"]))
        members = columns["risk_links"][begin:end]
        must(all(row < len(links) for row in members))
        groups.append(tuple(sorted({links[row] for row in members})))
        begin = end
    must(begin == len(columns["risk_links"]))
    ways = []
    for primary, backup, risk, backup_risk in rows(*TABLES[1]):
        must(primary < len(hops))
        risks = [one(row, groups, ()) for row in (risk, backup_risk)]
        ways.append((hops[primary], one(backup, hops, None), *risks))
    nics = {named(nic): named(address) for nic, address in rows("nics", "nic_addresses")}
    told = []
    for source, destination, from_, to, way in rows(*TABLES[0]):
        must(from_ < 65536 and to < 65536)
        told.append(((named(source), named(destination), from_, to), one(way, ways, None)))
    must(len({match for match, _ in told}) == len(told))
    return [*told, nics]  # type: ignore[list-item] # what there is to compare


def judge(message: pb.Push) -> bool:
    """Check that both readings of a push agree; return whether it was accepted."""
    try:
        expected = meant(message.operations)
        must(message.mode in {pb.PUSH_MODE_FULL_SYNC, pb.PUSH_MODE_INCREMENTAL})
    except RefusedError:
        expected = None
    try:
        push = decode_push(message)
    except MalformedPushError as error:
        check(expected is None, f"refused, and by the contract it is sound: {error}")
        check(str(error), "a refusal says why")
        return False
    check(expected is not None, "taken against the contract")
    operations = push.operations
    found: list[Any] = [
        (tuple(match), None if row < 0 else operations.keys[row])
        for match, row in zip(operations.matches, operations.groups, strict=True)
    ]
    check([*found, dict(operations.addresses)] == expected, "what was read is what was meant")
    return True


def changed(good: pb.Push, chance: random.Random) -> pb.Push:
    """Return a push in which some columns have another number, or one more or fewer."""
    made = pb.Push()
    made.CopyFrom(good)
    for _ in range(chance.choice((1, 1, 2, 4))):
        if chance.random() < 0.15:
            other = disturbed(made, chance)
            assert isinstance(other, pb.Push)
            made = other
            continue
        name = chance.choice([*COLUMNS, NAMES])
        content = getattr(made.operations, name)
        column = list(struct.unpack_from(f"<{len(content) // 4}I", content))
        at, value = chance.randint(0, len(column)), chance.choice((0, 1, 2, 3, 4, 9, 65536, 2**31))
        match chance.randrange(5):
            case 0:
                column.insert(at, value)
            case 1:
                del column[at : at + 1]
            case 2:
                column[at:] = []
            case _:
                column[at : at + 1] = [value]
        setattr(made.operations, name, numbers(*column))
    return made
