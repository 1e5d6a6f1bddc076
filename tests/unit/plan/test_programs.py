"""The entries of a plan, on fabrics small enough to check by hand."""

from __future__ import annotations

from heddle_controller.model.arrays import NONE
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.program import Entries
from heddle_controller.plan.programs import entries_of
from tests.support.plan_chance import Draft, Wish, clos, joined, wishes

Row = tuple[str, str, int, str, str]


def told(fabric: Fabric, entries: Entries) -> list[Row]:
    """Entries as switch, pair, source port, next node (and key), backup node."""
    structure = fabric.structure
    ids = structure.nodes.ids

    def hop(arc: int) -> str:
        if arc == NONE:
            return ""
        key = structure.links.key[arc >> 1]
        return f"{ids[structure.head[arc]]}#{key}" if key else str(ids[structure.head[arc]])

    return [
        (
            ids[entries.switch[row]],
            f"{ids[entries.source[row]]}>{ids[entries.destination[row]]}",
            int(entries.source_port[row]),
            hop(int(entries.primary[row])),
            hop(int(entries.backup[row])),
        )
        for row in range(len(entries))
    ]


def risks(fabric: Fabric, entries: Entries, row: int = 0) -> set[str]:
    """The links at risk for an entry, by name."""
    return {fabric.link_name(link) for link in entries.risks(row).tolist()}


def test_one_entry_at_the_leaf_of_a_clos() -> None:
    """In two tiers only the source's leaf has a choice: one entry, at risk of both links ahead."""
    fabric = clos()
    entries = entries_of(
        Draft(
            fabric,
            wishes(fabric, a=Wish("n0", "n2", qps=8)),
            {"a": [(0, 7, "n0 leaf0 spine1 leaf1 n2")]},
            {"a": [(0, 7, "n0 leaf0 spine0 leaf1 n2")]},
        ).plan()
    )
    assert told(fabric, entries) == [("leaf0", "n0>n2", 0, "spine1", "spine0")]
    assert risks(fabric, entries) == {"leaf0,spine1,0", "leaf1,spine1,0"}
    assert entries.stage.tolist() == [0]
    assert entries.destination_port.tolist() == [0]


def test_flows_under_one_leaf_need_no_entry() -> None:
    """If the underlay has only one way, no entry is written."""
    fabric = clos()
    draft = Draft(fabric, wishes(fabric, a=Wish("n0", "n1")), {"a": [(0, 0, "n0 leaf0 n1")]})
    assert len(entries_of(draft.plan())) == 0


def test_qps_that_part_have_entries_of_their_own() -> None:
    """A split flow is told apart by its ports; each QP is at risk only of its own links."""
    fabric = clos()
    flows = wishes(fabric, a=Wish("n0", "n2", qps=3))
    ways = {
        "a": [(0, 1, "n0 leaf0 spine0 leaf1 n2"), (2, 2, "n0 leaf0 spine1 leaf1 n2")],
    }
    entries = entries_of(Draft(fabric, flows, ways).plan())
    assert told(fabric, entries) == [
        ("leaf0", "n0>n2", 49152, "spine0", ""),
        ("leaf0", "n0>n2", 49153, "spine0", ""),
        ("leaf0", "n0>n2", 49154, "spine1", ""),
    ]
    assert entries.destination_port.tolist() == [4791] * 3
    assert risks(fabric, entries, 2) == {"leaf0,spine1,0", "leaf1,spine1,0"}


def test_two_flows_of_one_pair_share_an_entry_while_they_agree() -> None:
    """Flows of one pair that go the same way need one entry; when they part, one for each QP."""
    fabric = clos()
    flows = wishes(fabric, a=Wish("n0", "n2", 50.0), b=Wish("n0", "n2", 50.0, qps=2))
    over = "n0 leaf0 spine{} leaf1 n2"
    alike = {"a": [(0, 0, over.format(1))], "b": [(0, 1, over.format(1))]}
    apart = {"a": [(0, 0, over.format(1))], "b": [(0, 1, over.format(0))]}
    together = told(fabric, entries_of(Draft(fabric, flows, alike).plan()))
    assert together == [("leaf0", "n0>n2", 0, "spine1", "")]
    assert [row[2:4] for row in told(fabric, entries_of(Draft(fabric, flows, apart).plan()))] == [
        (49152, "spine1"),
        (49153, "spine0"),
        (49154, "spine0"),
    ]


def test_parallel_links_are_a_choice_at_the_spine_too() -> None:
    """Two cables down from the spine: the spine holds an entry, written before the leaf's."""
    fabric = clos(parallel=2)
    way = "n0 leaf0 #1 spine0 #0 leaf1 n2"
    draft = Draft(fabric, wishes(fabric, a=Wish("n0", "n2")), {"a": [(0, 0, way)]})
    entries = entries_of(draft.plan())
    assert told(fabric, entries) == [
        ("leaf0", "n0>n2", 0, "spine0#1", ""),
        ("spine0", "n0>n2", 0, "leaf1", ""),
    ]
    assert entries.stage.tolist() == [1, 0]
    assert risks(fabric, entries, 1) == {"leaf1,spine0,0"}


def test_pair_that_parts_further_down_takes_no_backup_into_its_own_risk() -> None:
    """QPs that part at the spine share the leaf's entry: its backup must avoid both their links."""
    fabric = clos(parallel=2)
    ways = [(0, 0, "n0 leaf0 spine0 #0 leaf1 n2"), (1, 1, "n0 leaf0 spine0 #1 leaf1 n2")]
    through_risk = "n0 leaf0 #1 spine0 #1 leaf1 n2"
    around = "n0 leaf0 spine1 leaf1 n2"
    flows = wishes(fabric, a=Wish("n0", "n2", qps=2))
    for second, expected in ((around, "spine1"), ("", "")):
        backups = [(0, 0, through_risk), (1, 1, second)]
        entries = entries_of(Draft(fabric, flows, {"a": ways}, {"a": backups}).plan())
        assert told(fabric, entries)[0] == ("leaf0", "n0>n2", 0, "spine0", expected)
        assert risks(fabric, entries) == {"leaf0,spine0,0", "leaf1,spine0,0", "leaf1,spine0,1"}


def test_shared_backup_counts_only_past_what_it_shares() -> None:
    """Only the switches where path and backup part have the backup in their entries."""
    nodes = [{"id": f"s{i}", "kind": "switch"} for i in range(5)]
    nodes += [{"id": name, "kind": "nic"} for name in ("a", "b")]
    links = [("s0", "s1"), ("s1", "s2"), ("s1", "s3"), ("s2", "s4"), ("s3", "s4")]
    fabric = joined(nodes, [*links, ("s0", "s1"), ("a", "s0"), ("b", "s4")])
    ways = {"f": [(0, 0, "a s0 #0 s1 s2 s4 b")]}
    for spare, first in (("a s0 #0 s1 s3 s4 b", ""), ("a s0 #1 s1 s3 s4 b", "s1#1")):
        draft = Draft(fabric, wishes(fabric, f=Wish("a", "b")), ways, {"f": [(0, 0, spare)]})
        entries = entries_of(draft.plan())
        assert told(fabric, entries) == [
            ("s0", "a>b", 0, "s1", first),
            ("s1", "a>b", 0, "s2", "s3"),
        ]


def test_path_that_leaves_the_shortest_way_is_written_all_along() -> None:
    """A detour needs an entry wherever it is not what the underlay would do."""
    ring = joined(
        [{"id": f"s{i}", "kind": "switch"} for i in range(4)]
        + [{"id": f"n{i}", "kind": "nic"} for i in range(2)],
        [("s0", "s1"), ("s1", "s2"), ("s2", "s3"), ("s3", "s0"), ("n0", "s0"), ("n1", "s1")],
    )
    draft = Draft(ring, wishes(ring, a=Wish("n0", "n1")), {"a": [(0, 0, "n0 s0 s3 s2 s1 n1")]})
    entries = entries_of(draft.plan())
    # At s2 the shortest way is s1 anyway; at s3, opposite of s1, there are two.
    assert [(row[0], row[3]) for row in told(ring, entries)] == [("s0", "s3"), ("s3", "s2")]
    assert entries.stage.tolist() == [1, 0]


def test_entry_stays_where_the_choice_is_only_down_for_now() -> None:
    """With one of two spines out of reach, the entry stays for when the choice is back."""
    fabric = clos()
    (link,) = fabric.find_links("leaf0", "spine0")
    sick = fabric.with_links({link: State.DOWN})
    way = {"a": [(0, 0, "n0 leaf0 spine1 leaf1 n2")]}
    entries = entries_of(Draft(sick, wishes(sick, a=Wish("n0", "n2")), way).plan())
    assert told(fabric, entries) == [("leaf0", "n0>n2", 0, "spine1", "")]


def test_detour_that_only_a_failure_opens() -> None:
    """A detour that only a failure opens has entries at both leaves and the spine before them."""
    fabric = clos(leaves=3, nics=1)
    (link,) = fabric.find_links("leaf2", "spine0")
    sick = fabric.with_links({link: State.DOWN})
    way = {"a": [(0, 0, "n0 leaf0 spine0 leaf1 spine1 leaf2 n2")]}
    entries = entries_of(Draft(sick, wishes(sick, a=Wish("n0", "n2")), way).plan())
    assert [(row[0], row[3]) for row in told(fabric, entries)] == [
        ("leaf0", "spine0"),
        ("leaf1", "spine1"),
        ("spine0", "leaf1"),
    ]
    assert entries.stage.tolist() == [2, 0, 1]


def test_no_backup_from_which_packets_may_come_back() -> None:
    """A spine from which packets may come back is no backup; one with its link is.

    With its link to leaf2 down, spine0 may send packets for leaf2 back to leaf0.
    """
    fabric = clos(leaves=3, spines=3, nics=1)
    (link,) = fabric.find_links("leaf2", "spine0")
    way = {"a": [(0, 0, "n0 leaf0 spine1 leaf2 n2")]}
    round_about = {"a": [(0, 0, "n0 leaf0 spine0 leaf1 spine2 leaf2 n2")]}
    straight = {"a": [(0, 0, "n0 leaf0 spine2 leaf2 n2")]}
    sick = fabric.with_links({link: State.DOWN})
    for backups, spine in ((round_about, ""), (straight, "spine2")):
        draft = Draft(sick, wishes(sick, a=Wish("n0", "n2")), way, backups)
        assert told(sick, entries_of(draft.plan())) == [("leaf0", "n0>n2", 0, "spine1", spine)]


def test_no_backup_that_the_underlay_would_not_follow() -> None:
    """A backup that the underlay would not follow is left out.

    Only its first hop is written, and at s3 the underlay knows a shorter way, over the link at
    risk.
    """
    nodes = [{"id": f"s{i}", "kind": "switch"} for i in range(6)]
    nodes += [{"id": name, "kind": "nic"} for name in ("a", "b")]
    links = [("s0", "s1"), ("s0", "s2"), ("s1", "s3"), ("s2", "s3"), ("s3", "s5")]
    fabric = joined(nodes, [*links, ("s3", "s4"), ("s4", "s5"), ("a", "s0"), ("b", "s5")])
    draft = Draft(
        fabric,
        wishes(fabric, f=Wish("a", "b")),
        {"f": [(0, 0, "a s0 s1 s3 s5 b")]},
        {"f": [(0, 0, "a s0 s2 s3 s4 s5 b")]},
    )
    assert told(fabric, entries_of(draft.plan()))[0] == ("s0", "a>b", 0, "s1", "")


def test_two_backups_do_not_send_packets_back_and_forth() -> None:
    """If one loss moves two entries of a pair to backups at each other, neither uses its backup.

    QPs of the pair enter at left and at right. The way over far is longer than the shortest, so its
    entry at right watches the link of the other way, too.
    """
    nodes = [{"id": name, "kind": "switch"} for name in ("left", "right", "far", "top", "end")]
    nodes += [{"id": name, "kind": "nic"} for name in ("a", "b")]
    links = [("left", "right"), ("left", "top"), ("left", "top"), ("right", "far"), ("far", "top")]
    links += [("right", "end"), ("top", "end"), ("a", "left"), ("a", "right")]
    fabric = joined(nodes, [*links, ("b", "top"), ("b", "end")])
    draft = Draft(
        fabric,
        wishes(fabric, f=Wish("a", "b", qps=2)),
        {"f": [(0, 0, "a left top b"), (1, 1, "a right far top end b")]},
        {"f": [(0, 0, "a left right end b"), (1, 1, "a right left #1 top b")]},
    )
    entries = entries_of(draft.plan())
    assert told(fabric, entries)[:2] == [
        ("left", "a>b", 0, "top", "right"),
        ("right", "a>b", 0, "far", "left"),
    ]
    (lost,) = fabric.find_links("left", "top", "0")
    for row in (0, 1):
        assert lost in entries.risks(row).tolist()
        assert lost in entries.backup_risks(row).tolist()


def test_ports_wrap_round() -> None:
    """The ports of a pair stay within the dynamic range, however many QPs it has."""
    fabric = clos()
    flows = wishes(fabric, a=Wish("n0", "n2", 1.0, 16380), b=Wish("n0", "n2", 1.0, 8))
    over = "n0 leaf0 spine{} leaf1 n2"
    ways = {"a": [(0, 16379, over.format(0))], "b": [(0, 7, over.format(1))]}
    entries = entries_of(Draft(fabric, flows, ways).plan())
    ports = entries.source_port.tolist()
    assert (min(ports), max(ports), len(set(ports))) == (49152, 65535, len(entries))
    # The last four of b meet ports that a has: the first flow keeps them.
    spine1 = fabric.structure.index["spine1"]
    moved = fabric.structure.head[entries.primary] == spine1
    assert entries.source_port[moved].tolist() == [65532, 65533, 65534, 65535]


def test_entries_of_no_flows() -> None:
    """A plan without paths has no entries."""
    fabric = clos()
    assert len(entries_of(Draft(fabric, wishes(fabric), {}).plan())) == 0
