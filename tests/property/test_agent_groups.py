"""A link finds the groups that it matters to, whether they are indexed yet or not."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from heddle_agent.fib import Group, Link, NextHop
from heddle_agent.table.groups import Groups, intern, key_of, only
from heddle_agent.table.push import GroupKey

SWITCH = "leaf0"
HOPS = [NextHop(f"spine{number}") for number in range(3)]
FAR = [Link.between(f"spine{spine}", f"leaf{leaf}") for spine in range(3) for leaf in (1, 2)]
OWN = [Link.between(SWITCH, hop.node) for hop in HOPS]

risks = st.lists(st.sampled_from(FAR), unique=True, max_size=2).map(
    lambda some: tuple(sorted(some))
)
keys = st.tuples(st.sampled_from(HOPS), st.sampled_from([None, *HOPS]), risks, risks)
batches = st.lists(st.lists(keys, max_size=4), max_size=6)


def matters(key: GroupKey, link: Link) -> bool:
    """Whether a link matters to a group by definition: it leads to it or is one of its risks."""
    primary, backup, ahead, spare = key
    hops = [hop for hop in (primary, backup) if hop is not None]
    return link in (*ahead, *spare, *(Link.between(SWITCH, hop.node, hop.key) for hop in hops))


@given(batches, st.integers(0, 5), st.lists(st.sampled_from([*FAR, *OWN]), max_size=3))
def test_links_find_the_groups_they_matter_to(
    told: list[list[GroupKey]], few: int, links: list[Link]
) -> None:
    """Each key gives one group, always the same, and every link of the group finds it."""
    groups, seen = Groups(SWITCH), dict[GroupKey, Group]()
    with patch("heddle_agent.table.groups.FEW", few):
        for batch in told:
            groups, found, new = intern(groups, batch)
            assert [key_of(group) for group in found] == batch
            assert {key_of(group) for group in new} == set(batch) - seen.keys()
            seen.update(zip(batch, found, strict=True))
            assert all(seen[key] is group for key, group in zip(batch, found, strict=True))
            assert len(groups.new) <= few
        expected = {group for key, group in seen.items() if any(matters(key, k) for k in links)}
        assert groups.touched(links) == expected
        kept = only(groups, expected)
        assert kept.touched([*FAR, *OWN]) == expected
