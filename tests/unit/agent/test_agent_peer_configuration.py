"""Where peers and keys come from, real sockets, and what is saved for the next start."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heddle_agent.agent import Agent
from heddle_agent.fib import MemoryFib, NextHop, Packet
from heddle_agent.peers import (
    KeyRing,
    PeerConfiguration,
    PeerFile,
    PeerNotices,
    SavedPeers,
    UdpNetwork,
    parse_address,
    read_keys,
    read_peers,
)
from heddle_agent.watch import ManualLinks
from tests.support.agent_worlds import entry, far, match, push
from tests.support.peer_notices import FABRIC, KEY
from tests.support.waiting import until

NEW = b"a newer key of sixteen bytes"


def opened(peer_configuration: PeerConfiguration) -> PeerNotices:
    """Return peer notices that pass nothing on."""
    return PeerNotices(
        fabric=FABRIC,
        switch="leaf0",
        keys=peer_configuration.keys,
        network=peer_configuration.network,
        heard=lambda *_: None,
        boot=peer_configuration.boot,
    )


@pytest.fixture
def network() -> Iterator[UdpNetwork]:
    """Yield a socket on loopback."""
    one = UdpNetwork("127.0.0.1:0")
    yield one
    one.close()


@pytest.mark.parametrize("loopback", ["127.0.0.1:0", "[::1]:0"])
async def test_a_notice_over_udp_moves_the_flows(loopback: str) -> None:
    """When a spine loses a link, the leaf's entry moves to its backup, and later back."""
    leaf_at, spine_at = UdpNetwork(loopback), UdpNetwork(loopback)
    fib = MemoryFib("leaf0", [NextHop("spine0"), NextHop("spine1")])
    leaf = agent("leaf0", fib, leaf_at, {"spine0": spine_at.address})
    links = ManualLinks("spine0", [NextHop("leaf0"), NextHop("leaf9")])
    peers = {"leaf0": leaf_at.address}
    spine = agent("spine0", MemoryFib("spine0", links.next_hops), spine_at, peers, links)
    running = [asyncio.create_task(one.run()) for one in (leaf, spine)]
    agents = [one.peer_notices for one in (leaf, spine) if one.peer_notices]
    wanted = push([(match(0), entry(0, 1, far(0)))])
    leaf.forwarding.receive(wanted)
    leaf.forwarding.program(wanted)
    await until(lambda: [notices.introduced for notices in agents] == [1, 1], "their meeting")
    packet = Packet("nic0", "far0", 77)
    links.down("leaf9")
    await until(lambda: fib.lookup(packet) == NextHop("spine1"), "the backup")
    links.up("leaf9")
    await until(lambda: fib.lookup(packet) == NextHop("spine0"), "the return")
    await asyncio.gather(leaf.stop(), spine.stop())
    await asyncio.gather(*running)


async def test_a_clock_that_jumps_moves_no_flow_and_keeps_none_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The wall clock only dates links. A jump of a day or a year decides nothing."""
    wall = 1.8e9
    monkeypatch.setattr(time, "time", lambda: wall)
    monkeypatch.setattr(time, "time_ns", lambda: int(wall * 1e9))
    leaf_at, spine_at = UdpNetwork("127.0.0.1:0"), UdpNetwork("127.0.0.1:0")
    fib = MemoryFib("leaf0", [NextHop("spine0"), NextHop("spine1")])
    leaf = agent("leaf0", fib, leaf_at, {"spine0": spine_at.address})
    hops = [NextHop("leaf0"), NextHop("leaf9")]
    links = ManualLinks("spine0", hops, clock=lambda: wall)
    peers = {"leaf0": leaf_at.address}
    spine = agent("spine0", MemoryFib("spine0", hops), spine_at, peers, links)
    running = [asyncio.create_task(one.run()) for one in (leaf, spine)]
    agents = [one.peer_notices for one in (leaf, spine) if one.peer_notices]
    wanted = push([(match(0), entry(0, 1, far(0)))])
    leaf.forwarding.receive(wanted)
    leaf.forwarding.program(wanted)
    await until(lambda: [notices.introduced for notices in agents] == [1, 1], "their meeting")
    packet = Packet("nic0", "far0", 77)
    for jump in (86_400.0, -31_536_000.0):
        wall += jump
        links.down("leaf9")
        await until(lambda: fib.lookup(packet) == NextHop("spine1"), "the backup")
        wall -= jump / 2
        links.up("leaf9")
        await until(lambda: fib.lookup(packet) == NextHop("spine0"), "the return")
    assert [seen.time for seen in links.current() if seen.sequence] == [wall]
    assert [seen.sequence for seen in links.current() if seen.sequence] == [4]
    await asyncio.gather(leaf.stop(), spine.stop())
    await asyncio.gather(*running)


def agent(
    switch: str,
    fib: MemoryFib,
    network: UdpNetwork,
    peers: dict[str, str],
    links: ManualLinks | None = None,
) -> Agent:
    """Return an agent that finds no controller."""
    return Agent(
        fabric=FABRIC,
        switch=switch,
        controllers=["127.0.0.1:9"],
        fib=fib,
        links=links or ManualLinks(switch, fib.next_hops),
        peer_configuration=PeerConfiguration(network, keys=[KEY], peers=peers),
    )


def test_the_controllers_word_is_kept_for_the_next_start(
    network: UdpNetwork, tmp_path: Path
) -> None:
    """Peers, keys and a greater boot number survive a restart. Only the owner can read the file."""
    path = tmp_path / "agent.json.peers"
    first = PeerConfiguration(network, peer_file=PeerFile(path, FABRIC, "leaf0"))
    assert first.asks
    assert first.keys.signing is None
    first.update(opened(first), {"spine0": "10.0.0.1:7", "spine1": ""}, [KEY, NEW])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = PeerConfiguration(network, peer_file=PeerFile(path, FABRIC, "leaf0"))
    assert again.peers == {"spine0": "10.0.0.1:7"}
    assert again.keys.keys == (KEY, NEW)
    assert again.boot > first.boot


def test_a_peer_that_the_controller_lost_sight_of_is_kept(network: UdpNetwork) -> None:
    """A peer named without an address keeps its old one. A peer not named at all is dropped."""
    peer_configuration = PeerConfiguration(network)
    notices = opened(peer_configuration)
    peer_configuration.update(notices, {"spine0": "10.0.0.1:7", "spine1": "10.0.0.2:7"}, [KEY])
    peer_configuration.update(notices, {"spine0": "", "spine2": "10.0.0.3:7"}, [])
    assert dict(notices.peers) == {"spine0": "10.0.0.1:7", "spine2": "10.0.0.3:7"}
    assert peer_configuration.keys.keys == (KEY,)


def test_files_win_and_are_read_again(network: UdpNetwork, tmp_path: Path) -> None:
    """Files override the controller.

    After a key is replaced in its file, the old one is still known.
    """
    keys, peers = tmp_path / "keys", tmp_path / "peers.json"
    keys.write_text(f"# ours\n{KEY.hex()}\n\n")
    peers.write_text('{"spine0": "10.0.0.1:7"}')
    peer_configuration = PeerConfiguration(network, key_file=keys, peers_file=peers)
    notices = opened(peer_configuration)
    notices.set_peers(peer_configuration.peers)
    assert not peer_configuration.asks
    peer_configuration.update(notices, {"spine9": "10.0.0.9:7"}, [NEW])
    assert (dict(notices.peers), peer_configuration.keys.keys) == ({"spine0": "10.0.0.1:7"}, (KEY,))
    old = peer_configuration.keys.signing
    assert old is not None
    replaced(keys, NEW.hex())
    replaced(peers, '{"spine1": "10.0.0.2:7"}')
    peer_configuration.poll(notices)
    assert (dict(notices.peers), peer_configuration.keys.keys) == ({"spine1": "10.0.0.2:7"}, (NEW,))
    assert peer_configuration.keys.find(old[0]) == KEY
    replaced(keys, "rubbish")
    keys_before = peer_configuration.keys.keys
    peer_configuration.poll(notices)
    assert peer_configuration.keys.keys == keys_before


def replaced(path: Path, text: str) -> None:
    """Replace the file in one step, as tools that rotate keys do."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    os.replace(fresh, path)  # noqa: PTH105 - in one step


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no key"),
        ("xyz", "line 1 is not hexadecimal"),
        ("# a\nabcd", "line 2: 2 bytes, give 16"),
        ("é", "is not text"),
    ],
)
def test_a_key_file_that_cannot_be_used(tmp_path: Path, text: str, words: str) -> None:
    """The error says what is wrong, with the line if there is one."""
    path = tmp_path / "keys"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        read_keys(path)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    """The error names the missing file, whether it is for keys or for peers."""
    readers: list[Callable[[Path], object]] = [read_keys, read_peers]
    for read in readers:
        with pytest.raises(ValueError, match="missing cannot be read: No such file"):
            read(tmp_path / "missing")


@pytest.mark.parametrize("text", ["[]", "{", '{"spine0": "spine0:7"}', '{"spine0": 7}'])
def test_a_peers_file_that_cannot_be_used(tmp_path: Path, text: str) -> None:
    """A file that is not an object of addresses is refused."""
    path = tmp_path / "peers"
    path.write_text(text)
    with pytest.raises(ValueError, match="peers file"):
        read_peers(path)


@pytest.mark.parametrize(
    "change", [{"boot": -1}, {"boot": "1"}, {"peers": []}, {"keys": ["x"]}, {"switch": "leaf1"}]
)
def test_a_damaged_memory_is_told(tmp_path: Path, change: dict[str, object]) -> None:
    """The error says that the file is damaged."""
    path = tmp_path / "memory"
    file = PeerFile(path, FABRIC, "leaf0")
    file.keep(SavedPeers(5, {}, [KEY]))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ValueError, match="memory is damaged"):
        file.load()


@pytest.mark.parametrize(
    "text", ["", "host:7", "10.0.0.1", "10.0.0.1:x", "10.0.0.1:70000", "::1:7x", "10.0.0.1:²"]
)
def test_what_is_no_address(text: str) -> None:
    """Only an IP address with a port is accepted."""
    with pytest.raises(ValueError, match="is not an IP address and a port"):
        parse_address(text)


def test_addresses_that_cannot_be_had(network: UdpNetwork) -> None:
    """An address in use and one that means all addresses are refused, with the option's name."""
    with pytest.raises(
        ValueError, match=rf"--peer-notices {network.address}: Address already in use"
    ):
        UdpNetwork(network.address)
    with pytest.raises(ValueError, match=r"--peer-notices 0\.0\.0\.0:7: give the address"):
        UdpNetwork("0.0.0.0:7")


def test_what_cannot_be_sent_is_told(network: UdpNetwork) -> None:
    """A datagram without a valid address or too large does not leave, and raises nothing."""
    for address, datagram in (("nonsense", b"x"), ("127.0.0.1:9", bytes(70_000))):
        assert not network.send(address, datagram)


def test_datagrams_that_did_not_leave_are_counted_apart(network: UdpNetwork) -> None:
    """A peer whose address is none is greeted in vain: the greeting does not count as sent."""
    notices = PeerNotices(
        fabric="f1",
        switch="leaf0",
        keys=KeyRing([KEY], clock=time.monotonic),
        network=network,
        heard=lambda _switch, _down: None,
    )
    notices.set_peers({"spine0": "nonsense", "spine1": network.address})
    assert (notices.sent, notices.unsent) == (1, 1)
