"""The linux backend does what the one in memory does, for drawn batches, failures and restarts."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from heddle_agent.fib import Batch, Choice, Group, Link, Match, Packet, Steering
from heddle_agent.fib.linux import LinuxFib, clean_kernel
from heddle_agent.table import GroupKey
from heddle_agent.table.groups import Groups, key_of
from tests.support import fib_linux
from tests.support.agent_worlds import ROCE, SPINES, SWITCH, far, fib, uplink

MATCHES: list[Match] = [
    ("nic0", f"far{number}", source_port, destination_port)
    for number in range(3)
    for source_port, destination_port in ((0, 0), (5, 0), (0, ROCE), (5, ROCE))
]
PACKETS = [
    Packet("nic0", f"far{n}", port, end) for n in range(3) for port in (5, 6) for end in (ROCE, 9)
]
LINKS = [*map(uplink, range(4)), far(0), far(1)]
GROUPS = [
    Group(SPINES[primary], backup, risks, backup_risks if backup else ())
    for primary in range(4)
    for backup in (None, SPINES[(primary + 1) % 4], SPINES[(primary + 2) % 4])
    for risks, backup_risks in (((), ()), ((far(0),), (far(1),)), ((far(0), far(1)), ()))
]
SPARE = "10.9.7.7"
choose = Groups(SWITCH).choose
sets = st.dictionaries(st.sampled_from(MATCHES), st.sampled_from(GROUPS), max_size=6)


def plain(entries: dict[Match, Group]) -> dict[Match, GroupKey]:
    """Return entries with each group's key instead of the group itself."""
    return {match: key_of(group) for match, group in entries.items()}


class Switch(RuleBasedStateMachine):
    """One switch twice: in the kernel and in memory."""

    world: fib_linux.World

    @initialize(piece=st.sampled_from([1, 2, LinuxFib.piece]))
    def opened(self, piece: int) -> None:
        """Start with a clean switch that programs this many entries at a time."""
        clean_kernel(self.world.switch.netlink)
        self.memory = fib()
        self.piece = piece
        self.kernel = self.opened_kernel()
        self.kernel.steer(Steering({}, frozenset()))
        self.down: frozenset[Link] = frozenset()
        self.addresses = self.known()

    def teardown(self) -> None:
        """Close the sockets."""
        if hasattr(self, "kernel"):
            self.kernel.close()

    @rule(wanted=sets, gone=st.lists(st.sampled_from(MATCHES), max_size=4))
    def programmed(self, wanted: dict[Match, Group], gone: list[Match]) -> None:
        """Apply a batch to both; it deletes nothing that it also sets."""
        deletes = [match for match in gone if match not in wanted]
        choices = {group: choose(group, self.down) for group in wanted.values()}
        diverted = {g: choice for g, choice in choices.items() if choice is not Choice.PRIMARY}
        batch = Batch(wanted, deletes, diverted, self.addresses)
        assert not self.memory.apply(batch)
        assert not self.kernel.apply(batch)

    @rule(changed=st.lists(st.sampled_from(LINKS), min_size=1, max_size=3, unique=True))
    def failed(self, changed: list[Link]) -> None:
        """Lose links or restore them; only groups whose choice changes are steered."""
        before, self.down = self.down, self.down.symmetric_difference(changed)
        choices = {
            group: choose(group, self.down)
            for group in {*GROUPS, *self.memory.read_back().values()}
            if choose(group, before) != choose(group, self.down)
        }
        self.memory.steer(Steering(choices, self.down))
        self.kernel.steer(Steering(choices, self.down))

    @rule()
    def restarted(self) -> None:
        """Let another agent take over what the kernel holds, and tell it which links are down."""
        self.kernel.close()
        self.kernel = self.opened_kernel()
        found = self.kernel.read_back()
        self.memory = fib()
        choices = {group: choose(group, self.down) for group in found.values()}
        self.memory.apply(Batch(found, (), choices))
        self.memory.steer(Steering({}, self.down))
        self.kernel.steer(Steering(choices, self.down))

    @rule(what=st.sampled_from(["table", "routes", "rules", "elements"]))
    def meddled_with(self, what: str) -> None:
        """Remove something of ours as another program could; the next refresh restores it."""
        run = self.world.switch.run
        if what == "table":
            run("nft", "delete", "table", "inet", "heddle")
        elif what == "elements":
            flows = "flows_ipv6" if self.world.ipv6 else "flows"
            run("nft", f"flush map inet heddle ways; flush map inet heddle {flows}")
        elif what == "rules":
            run("sh", "-c", f"ip {self.world.family} rule del pref 17201; true")
        else:
            run("sh", "-c", f"ip {self.world.family} route flush table {0x48000001}; true")
        self.kernel.refresh()

    @rule()
    def moved(self) -> None:
        """Give a NIC another address, or its first one again, and program all its entries again."""
        moved = self.addresses == self.known()
        self.addresses = {**self.known(), **({"far0": self.world.address(SPARE)} if moved else {})}
        again = {m: g for m, g in self.memory.read_back().items() if "far0" in m}
        self.programmed(again, [])

    @invariant()
    def both_hold_the_same(self) -> None:
        """Check that both have the same entries, and that packets go where memory says.

        Where memory says underlay, any way is right.
        """
        if not hasattr(self, "kernel"):
            return
        assert plain(dict(self.kernel.read_back())) == plain(dict(self.memory.read_back()))
        wire = {packet: self.world.send(self.wire(packet)) for packet in PACKETS}
        for packet, token in wire.items():
            cable = self.world.arrives(token)
            assert cable is not None, packet
            entry = self.memory._find(packet)
            group = self.memory.read_back()[entry] if entry else None
            choice = Choice.UNDERLAY if group is None else choose(group, self.down)
            if group is not None and choice is not Choice.UNDERLAY:
                hop = group.primary if choice is Choice.PRIMARY else group.backup
                assert SPINES[int(cable[2:])] == hop, (packet, choice)

    def opened_kernel(self) -> LinuxFib:
        """Return the backend as a new agent opens it."""
        kernel = LinuxFib(SWITCH, fib_linux.CABLES, opener=self.world.switch.netlink)
        kernel.piece = self.piece
        return kernel

    def known(self) -> dict[str, str]:
        """Return the first addresses of the NICs."""
        return self.world.addresses

    def wire(self, packet: Packet) -> tuple[str, str, int, int]:
        """Return a packet with addresses instead of NICs."""
        source, destination, *ports = packet
        return (self.addresses[source], self.addresses[destination], ports[0], ports[1])


@pytest.mark.parametrize("family", ["ipv4", "ipv6"])
def test_kernel_and_memory_agree(family: str) -> None:
    """Both hold and forward the same, whatever happens in whatever order."""
    with fib_linux.world(ipv6=family == "ipv6") as world:
        machine = type("Machine", (Switch,), {"world": world})
        case = machine.TestCase  # type: ignore[attr-defined]
        case.settings = settings(max_examples=10, stateful_step_count=10, deadline=None)
        case().runTest()
