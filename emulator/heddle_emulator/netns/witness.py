"""Witnesses: every switch's kernel counts which way the packets of each flow really take.

A small nftables table of the lab in each switch counts forwarded packets by addresses, ports and
the interface that they leave by. It sees every packet, whatever decided where it goes, and changes
nothing. It is separate from an agent's own table.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from heddle_emulator.netns import tools
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.probe.spec import ProbeFlow

TABLE = "heddle_lab"
_LARGEST = 65535


def script(*, ipv6: bool = False) -> str:
    """Return the script for ``nft -f`` that makes a witness for packets of one family."""
    ip, address = ("ip6", "ipv6_addr") if ipv6 else ("ip", "ipv4_addr")
    key = f"{ip} saddr . {ip} daddr . th sport . th dport . oifname"
    return f"""
table {ip} {TABLE} {{
    set seen {{
        type {address} . {address} . inet_service . inet_service . ifname
        flags dynamic
        size {_LARGEST}
        counter
    }}
    chain leaving {{
        type filter hook forward priority 300; policy accept;
        meta l4proto {{ tcp, udp }} add @seen {{ {key} }}
    }}
}}
"""


FlowKey = tuple[str, str, int, int]
"""Source and destination address of a flow, then source and destination port."""


def key_of(flow: ProbeFlow) -> FlowKey:
    """Return the key by which witnesses count a flow."""
    return flow.source, flow.destination, flow.source_port, flow.destination_port


@dataclass(frozen=True, slots=True, eq=False)
class Testimony:
    """Counted packets by flow, and then by switch and the interface that they left it by."""

    packets: dict[FlowKey, Counter[tuple[str, str]]]

    def since(self, before: Testimony) -> Testimony:
        """Return what was counted after an earlier testimony."""
        none: Counter[tuple[str, str]] = Counter()
        return Testimony({k: c - before.packets.get(k, none) for k, c in self.packets.items()})

    def ways(self, flow: ProbeFlow) -> Counter[tuple[str, str]]:
        """Return the packets of a flow by switch and the interface that they left it by."""
        return self.packets.get(key_of(flow), Counter())

    def twice(self, flow: ProbeFlow, sent: int) -> int:
        """Return how often packets of a flow passed a switch again; ``sent`` packets were sent."""
        passed: Counter[str] = Counter()
        for (switch, _), count in self.ways(flow).items():
            passed[switch] += count
        return sum(max(0, count - sent) for count in passed.values())


def place(lab: Lab) -> None:
    """Put a witness into every switch."""
    told = script(ipv6=lab.layout.ipv6)
    tools.each(
        lambda s: tools.run_inside(lab.spaces[s], ["nft", "-f", "-"], told), lab.layout.switches
    )


def hear(lab: Lab) -> Testimony:
    """Return what all witnesses have counted so far."""
    found: dict[FlowKey, Counter[tuple[str, str]]] = {}
    for switch in lab.layout.switches:
        family = "ip6" if lab.layout.ipv6 else "ip"
        command = ["nft", "-j", "list", "set", family, TABLE, "seen"]
        told = json.loads(tools.run_inside(lab.spaces[switch], command))
        for element in _elements(told):
            *key, interface = element["val"]["concat"]
            where = found.setdefault((key[0], key[1], int(key[2]), int(key[3])), Counter())
            where[switch, interface] += int(element["counter"]["packets"])
    return Testimony(found)


def _elements(told: dict[str, Any]) -> list[dict[str, Any]]:
    sets = [part["set"] for part in told["nftables"] if "set" in part]
    return [element["elem"] for one in sets for element in one.get("elem", [])]
