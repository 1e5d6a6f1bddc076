"""Keys and fields of SONiC's databases, as its configuration guide and its ACL schema name them.

An entry is a rule of the table ``HEDDLE``, whose type is our own: it matches addresses of IPv4 or
of IPv6, protocol and UDP ports, and redirects to a next hop. An entry that is left to the underlay
for now forwards, at its own priority, so that no wider entry takes its packets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from heddle_agent.fib.values import Choice, Group, Match

APPL_DB, COUNTERS_DB, CONFIG_DB, STATE_DB = 0, 2, 4, 6
"""Numbers of the databases."""
_TABLE = "HEDDLE"
TYPE_KEY = f"ACL_TABLE_TYPE|{_TABLE}"
TYPE = {
    "MATCHES@": "SRC_IP,DST_IP,IP_PROTOCOL,SRC_IPV6,DST_IPV6,NEXT_HEADER,L4_SRC_PORT,L4_DST_PORT",
    "ACTIONS@": "PACKET_ACTION,REDIRECT_ACTION",
    "BIND_POINTS@": "PORT,PORTCHANNEL",
}
TABLE_KEY = f"ACL_TABLE|{_TABLE}"
RULES = f"ACL_RULE|{_TABLE}|"
"""CONFIG_DB; a name follows."""
STATUS = f"ACL_RULE_TABLE|{_TABLE}|"
"""STATE_DB; likewise. Its field ``status`` is Active, Inactive or Pending creation."""
ACTIVE, INACTIVE = "Active", "Inactive"
CAPABILITY_KEY = "ACL_STAGE_CAPABILITY_TABLE|INGRESS"
"""STATE_DB; its field ``action_list`` names what rules may do."""
ROOM_KEYS = "CRM:ACL_TABLE_STATS:*"
ROOM_FIELD = "crm_stats_acl_entry_available"
"""COUNTERS_DB: rules for which a table of the chip has room."""
NOTES_KEY = "HEDDLE_RULES"
"""STATE_DB: a field for each rule, ours alone: the names behind its numbers."""
PORT_STATES, UP = ("admin_status", "oper_status"), "up"
"""APPL_DB: fields of ``PORT_TABLE`` and ``LAG_TABLE``, and what they say of a port that is up."""
REDIRECT, ACTION = "REDIRECT_ACTION", "PACKET_ACTION"
EXACT_PRIORITY, PAIR_PRIORITY = 9000, 8000
_UDP = 17


@dataclass(frozen=True, slots=True)
class Exit:
    """Where a link of the fabric is plugged in."""

    interface: str
    """Name of the port, ``Ethernet4``."""
    address: str
    """Of the neighbour on it."""

    @property
    def redirect(self) -> str:
        """As a rule names it."""
        return f"{self.address}@{self.interface}"


def port_key(interface: str) -> str:
    """APPL_DB: the key of a port or of a portchannel."""
    table = "LAG_TABLE" if interface.startswith("PortChannel") else "PORT_TABLE"
    return f"{table}:{interface}"


def channel_of(interface: str) -> str:
    """The channel of the notifications of that key."""
    return f"__keyspace@{APPL_DB}__:{port_key(interface)}"


def table_fields(ports: str) -> dict[str, str]:
    """The table, bound to some ports; to none, no packet is matched."""
    return {"type": _TABLE, "policy_desc": "Heddle", "stage": "ingress", "ports@": ports}


def match_fields(match: Match, addresses: Mapping[str, str]) -> dict[str, str]:
    """What a rule matches."""
    source, destination, *ports = match
    ends = addresses[source], addresses[destination]
    fields = {"PRIORITY": str(EXACT_PRIORITY if any(ports) else PAIR_PRIORITY)}
    if ip_address(ends[0]).version == 4:  # noqa: PLR2004 - of IP
        fields |= {"SRC_IP": f"{ends[0]}/32", "DST_IP": f"{ends[1]}/32", "IP_PROTOCOL": str(_UDP)}
    else:
        fields |= {"SRC_IPV6": f"{ends[0]}/128", "DST_IPV6": f"{ends[1]}/128"}
        fields["NEXT_HEADER"] = str(_UDP)
    names = ("L4_SRC_PORT", "L4_DST_PORT")
    return fields | {name: str(port) for name, port in zip(names, ports, strict=True) if port}


def address_fault(match: Match, addresses: Mapping[str, str]) -> str:
    """Why no rule can match the addresses of an entry; empty if one can."""
    versions = set()
    for nic in match[:2]:
        told = addresses.get(nic)
        if not told:
            return f"NIC {nic} has no address in the fabric file"
        try:
            versions.add(ip_address(told).version)
        except ValueError:
            return f"NIC {nic} has address {told!r}: give it one of IPv4 or of IPv6"
    return "" if len(versions) == 1 else f"{match[0]} and {match[1]} have addresses of two families"


def action_fields(
    group: Group, choice: Choice, exits: Mapping[tuple[str, str], Exit]
) -> dict[str, str]:
    """What a rule does: one field, and never both at once."""
    hop = {Choice.PRIMARY: group.primary, Choice.BACKUP: group.backup}.get(choice)
    return {ACTION: "FORWARD"} if hop is None else {REDIRECT: exits[hop.port].redirect}
