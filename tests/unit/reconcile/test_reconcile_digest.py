from __future__ import annotations

from collections.abc import Iterable
from random import Random

import numpy as np
import pytest

from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.program import Entries, no_entries
from heddle_controller.reconcile.rollout.answers import table_digest
from tests.support.reconcile_network import out_arcs, random_fabric
from tests.support.reconcile_switches import SwitchTable, match_of, way_of


def random_entries(random: Random, count: int) -> tuple[Entries, Fabric]:
    """Return random entries of switch "s1", in no particular order, and their fabric."""
    fabric = random_fabric(random, 6, 12)
    switch = fabric.structure.index["s1"]
    arcs = out_arcs(fabric, switch)
    nics = range(6, 18)
    links = range(fabric.link_count)
    risks = [
        [
            *random.sample(links, random.randint(0, 3)),
            *(~spare for spare in random.sample(links, 2)),
        ]
        if random.random() < 0.5
        else random.sample(links, random.randint(0, 3))
        for _ in range(count)
    ]
    matches = random.sample(
        [(s, d, p) for s in nics for d in nics for p in (0, 49152, 50000) if s != d], count
    )
    entries = Entries(
        switch=_column(switch for _ in matches),
        source=_column(source for source, _, _ in matches),
        destination=_column(destination for _, destination, _ in matches),
        source_port=_column(port for _, _, port in matches),
        destination_port=_column(4791 if port else 0 for _, _, port in matches),
        primary=_column(random.choice(arcs) for _ in matches),
        backup=_column(random.choice([*arcs, NONE]) for _ in matches),
        stage=_column(0 for _ in matches),
        risk_first=np.concatenate([[0], np.cumsum([len(r) for r in risks])]).astype(np.int64),
        risk_links=_column(link for of_entry in risks for link in of_entry),
    )
    return entries, fabric


def _column(values: Iterable[int]) -> Ints:
    return np.array(list(values), dtype=np.int64)


@pytest.mark.parametrize("seed", range(8))
def test_it_is_the_digest_of_the_agent(seed: int) -> None:
    """Controller and agent compute one digest for the same entries, each by its own code."""
    entries, fabric = random_entries(Random(seed), 40)
    table = SwitchTable()
    for row in range(len(entries)):
        table.entries[match_of(fabric, entries, row)] = way_of(fabric, entries, row)
    digest = table_digest(fabric, entries)
    assert digest == table.digest()
    assert len(digest) == 32
    assert table_digest(fabric, entries.take(np.arange(39))) != digest


def test_nothing_has_no_digest() -> None:
    """The digest of an empty table is empty."""
    _, fabric = random_entries(Random(0), 1)
    assert table_digest(fabric, no_entries()) == b"" == SwitchTable().digest()
