"""The text for Arista EOS forwards every QP on its planned path.

No EOS is run. The reader in this test applies what the documentation says of traffic policies:
rules are asked in order, the first match decides, and packets without a match are routed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network

import pytest

from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.files.fabric_file import fabric_document, parse_fabric
from heddle_controller.model.flows import ROCE_PORT
from heddle_controller.model.plan import Plan
from heddle_controller.model.underlay import underlay
from heddle_controller.plan.eos import POLICY, eos_texts
from tests.property.test_plan_programs import drawn
from tests.support.depth import fresh_seeds


@dataclass(frozen=True)
class Rule:
    """One ``match`` of a policy. Empty ``ports`` match any packet."""

    name: str
    source: str
    destination: str
    ports: tuple[tuple[int, int], ...]
    next_hop: str

    def takes(self, source: str, destination: str, port: int) -> bool:
        """Whether the rule matches a RoCE packet."""
        return (
            ip_address(source) in ip_network(self.source)
            and ip_address(destination) in ip_network(self.destination)
            and (not self.ports or any(low <= port <= high for low, high in self.ports))
        )


RULE = re.compile(
    r"      match (?P<name>[A-Za-z0-9_.-]{1,200}) (?P<family>ipv[46])\n"
    r"         source prefix (?P<source>\S+)\n"
    r"         destination prefix (?P<destination>\S+)\n"
    rf"(?:         protocol udp source port (?P<ports>[0-9, -]+) destination port {ROCE_PORT}\n)?"
    r"         !\n         actions\n            redirect next-hop (?P<hop>\S+)\n      !\n"
)


def rules(text: str) -> list[Rule]:
    """The rules of a text. Asserts that every line is understood."""
    head = f"traffic-policies\n   no traffic-policy {POLICY}\n   traffic-policy {POLICY}\n"
    comment, begun, body = text.partition(head)
    assert begun
    assert all(line.startswith("! ") for line in comment.splitlines())
    found = []
    while match := RULE.match(body):
        body = body[match.end() :]
        version = ip_network(match["source"]).version
        assert match["family"] == f"ipv{version}"
        told = tuple(_span(one) for one in match["ports"].split(", ")) if match["ports"] else ()
        found.append(Rule(match["name"], match["source"], match["destination"], told, match["hop"]))
    assert body == "      match ipv4-all-default ipv4\n      match ipv6-all-default ipv6\n!\n"
    assert len({rule.name for rule in found}) == len(found)
    return found


def _span(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    return int(low), int(high or low)


def addressed(plan: Plan, *, version: int = 4) -> Plan:
    """The plan on the same fabric, with an address for each NIC and each end of a link."""
    told = fabric_document(plan.fabric)
    net = "10.{}.{}.{}" if version == 4 else "2001:db8:{}::{}:{}"
    for row, node in enumerate(told["nodes"]):
        node["address"] = net.format(0, row // 250, row % 250 + 1)
    for row, edge in enumerate(told["edges"]):
        edge["source_address"] = net.format(1, row // 250, row % 250 + 1)
        edge["target_address"] = net.format(2, row // 250, row % 250 + 1)
    fabric = parse_fabric(told, "a test")
    return replace(plan, fabric=Fabric(fabric.structure, plan.fabric.link_state,
                                       plan.fabric.node_state))  # fmt: skip


def arcs_by_hop(fabric: Fabric) -> dict[str, int]:
    """The arc that leads to each link end, by the address of that end."""
    structure = fabric.structure
    return {
        structure.links.address[arc >> 1][0 if arc & 1 else 1]: arc
        for arc in range(len(structure.tail))
    }


def hops(plan: Plan) -> Iterator[tuple[int, int, int, int]]:
    """Every hop of every QP after its NIC, as flow, source port, switch and arc."""
    ports = plan.flows.source_ports()
    for path, flow in enumerate(plan.paths.flow.tolist()):
        for qp in range(int(plan.paths.first_qp[path]), int(plan.paths.last_qp[path]) + 1):
            for arc in plan.paths.of(path)[1:].tolist():
                yield flow, int(ports[flow]) + qp, int(plan.fabric.structure.tail[arc]), arc


@pytest.mark.deep
@pytest.mark.parametrize("version", [4, 6])
def test_packets_take_the_paths_of_the_plan(version: int) -> None:
    """For every QP at every switch, a rule leads along the path, or routing has only that way."""
    pinned = 0
    for seed in fresh_seeds(25, 300):
        plan = addressed(drawn(seed), version=version)
        structure = plan.fabric.structure
        held = {switch: rules(text) for switch, text in eos_texts(plan, "test").items()}
        arcs, address = arcs_by_hop(plan.fabric), structure.nodes.address
        routed = underlay(structure, plan.fabric.carries)
        for flow, port, switch, arc in hops(plan):
            ends = int(plan.flows.source[flow]), int(plan.flows.destination[flow])
            packet = address[ends[0]], address[ends[1]], port
            found = next(
                (rule for rule in held[structure.nodes.ids[switch]] if rule.takes(*packet)), None
            )
            if found is None:
                ways = routed.next_hops(switch, ends[1]).tolist()
            else:
                ways = [arcs[found.next_hop]]
                pinned += 1
            assert ways == [arc], f"seed {seed}, flow {plan.flows.ids[flow]}, port {port}"
    assert pinned > 100


def test_the_same_plan_gives_the_same_text_and_others_differ_where_plans_do() -> None:
    """The same plan gives the same texts, one for each switch."""
    plan = addressed(drawn(3))
    texts = eos_texts(plan, "test")
    assert eos_texts(plan, "test") == texts
    kinds = plan.fabric.structure.nodes.kind
    assert len(texts) == int((kinds != NodeKind.NIC).sum())


def test_what_has_no_address_is_named() -> None:
    """The error names each NIC that has rules and lacks an address."""
    plan = next(plan for plan in map(drawn, range(100)) if _has_rules(plan))
    with pytest.raises(InputError) as told:
        eos_texts(plan, "fabric.json")
    said = [str(problem) for problem in told.value.problems]
    assert any(one.startswith("nic ") and "has no address" in one for one in said)


def _has_rules(plan: Plan) -> bool:
    return any(rules(text) for text in eos_texts(addressed(plan), "test").values())
