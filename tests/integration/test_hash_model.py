"""The model of Linux's ECMP hash gives the next hops that real kernels choose."""

from __future__ import annotations

import json
import os
import random
import secrets
from bisect import bisect_left
from collections.abc import Iterator
from ipaddress import ip_address

import pytest

from heddle_agent.host.hashes import linux_hash
from heddle_controller.model.files.port_paths_file import parse_port_paths
from heddle_emulator.netns import tools
from heddle_emulator.netns.lab import Lab, hash_seed
from heddle_emulator.topology import clos, hashing, with_ipv6
from tests.integration.labbing import small_lab
from tests.integration.steering import AGENT
from tests.support import fib_linux

WAYS = 7
PORTS = range(49152, 49216)
POLICY = {f"net/{family}/fib_multipath_hash_policy": "1" for family in ("ipv4", "ipv6")}
SOURCE, DESTINATION = "l0-h0-n0", "l1-h0-n0"


@pytest.fixture
def router() -> Iterator[fib_linux.Space]:
    """A namespace with routes that have 2 to ``WAYS`` next hops."""
    fib_linux.needed()
    fib_linux.sweep()
    space = fib_linux.Space(f"hdfib.{os.getpid()}.{secrets.token_hex(2)}.hash")
    try:
        lines = ["link add in0 type veth peer name far", "link set in0 up", "link set far up"]
        lines += ["addr add 10.1.0.1/16 dev in0", "addr add fd01::1/16 dev in0 nodad"]
        for way in range(WAYS):
            lines += [f"link add o{way} type veth peer name p{way}"]
            lines += [f"link set o{way} up", f"link set p{way} up"]
            lines += [f"addr add 10.2.{way}.1/24 dev o{way}"]
            lines += [f"addr add fd02:{way}::1/64 dev o{way} nodad"]
        for count in range(2, WAYS + 1):
            for net, via in (
                (f"10.9{count}.0.0/16", "10.2.{}.2"),
                (f"fd9{count}::/16", "fd02:{}::2"),
            ):
                hops = (f"nexthop via {via.format(way)} dev o{way}" for way in range(count))
                lines += [f"route add {net} {' '.join(hops)}"]
        space.ip(*lines)
        space.settings("ipv4", {"ip_forward": "1", "fib_multipath_hash_policy": "1"})
        space.settings("ipv6", {"conf/all/forwarding": "1", "fib_multipath_hash_policy": "1"})
        yield space
    finally:
        space.remove()


@pytest.mark.parametrize("ipv6", [False, True], ids=["ipv4", "ipv6"])
def test_the_kernel_hashes_as_the_model_says(router: fib_linux.Space, *, ipv6: bool) -> None:
    """The model names the kernel's next hop, for drawn seeds, addresses, ports and 2 to 7 ways."""
    draw = random.Random(seed := secrets.randbits(32))
    for count in range(2, WAYS + 1):
        key = draw.randrange(1, 1 << 32)
        router.settings("ipv4", {"fib_multipath_hash_seed": str(key)})
        asked: list[tuple[str, str, int]] = []
        for _ in range(60):
            if ipv6:
                ends = [
                    str(ip_address(f"{net}{draw.randrange(1, 65535):x}"))
                    for net in ("fd01::", f"fd9{count}::")
                ]
            else:
                ends = [
                    f"{net}.{draw.randrange(1, 255)}.{draw.randrange(1, 255)}"
                    for net in ("10.1", f"10.9{count}")
                ]
            asked.append((ends[0], ends[1], draw.randrange(1, 65536)))
        lines = [
            f"route get {to} from {source} iif in0 ipproto udp sport {port} dport 4791"
            for source, to, port in asked
        ]
        told = router.run("ip", "-o", "-batch", "-", text="\n".join(lines) + "\n").splitlines()
        bounds = [((at + 1) * 2**31 + count // 2) // count - 1 for at in range(count)]
        for (source, to, port), line in zip(asked, told, strict=True):
            way = bisect_left(bounds, linux_hash(source, to, port, key))
            assert f" dev o{way} " in line, f"seed {seed}: {source} {to} {port}: {line}"


@pytest.fixture(scope="module", params=["ipv4", "ipv6"])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab of two leaves and four spines, in which FRR alone decides."""
    fabric = hashing(clos(leaves=2, spines=4, nics_per_leaf=1, nics_per_host=1))
    if request.param == "ipv6":
        fabric = with_ipv6(fabric)
    with small_lab(programs=False, fabric=fabric) as (lab, _):
        yield lab


def probed(lab: Lab, *words: str) -> tuple[dict[int, int], int]:
    """Run ``heddle-agent probe``; return each port's arc from leaf to spine.

    The second value is the number of ports whose paths come from the model, not from probes.
    """
    command = [AGENT, "probe", "--hops=3", f"--ports={PORTS[0]}-{PORTS[-1]}", *words]
    command += [f"--source={lab.layout.address(SOURCE)}"]
    command += [f"--destination={lab.layout.address(DESTINATION)}"]
    told = json.loads(tools.run_inside(lab.spaces[lab.layout.nic_port[SOURCE].namespace], command))
    known = parse_port_paths(told, lab.layout.fabric, "probed")
    (pair,) = told["pairs"]
    modelled = sum(len(p["ports"]) for p in pair["paths"] if p["learned"] == "modelled")
    return {
        port: int(known.arcs[known.first[way] + 1])
        for way in range(len(known))
        for port in known.ports[known.first_port[way] : known.first_port[way + 1]].tolist()
    }, modelled


def test_ports_that_were_not_probed_take_the_paths_that_were_told(lab: Lab) -> None:
    """With the leaf's hash seed, probes of 36 ports tell the paths of all 64 correctly.

    With a wrong seed, or none, all ports are probed.
    """
    tools.write_settings({lab.spaces[s]: POLICY for s in lab.layout.switches})
    seeds, fabric = lab.folder / "seeds.json", f"--fabric={lab.folder / 'fabric.json'}"
    ways, modelled = probed(lab)
    assert (len(ways), len(set(ways.values())), modelled) == (len(PORTS), 4, 0)
    for seed, wanted in ((hash_seed("l0", lab.options.seed), len(PORTS) - 36), (7, 0)):
        seeds.write_text(json.dumps({"l0": seed}))
        found = probed(lab, "--sample=36", f"--linux-seeds={seeds}", fabric)
        assert found == (ways, wanted)
    assert probed(lab, "--sample=36", fabric) == (ways, 0)
