"""Keys and fields of SONiC's databases, as in its configuration guide and its ACL schema.

An entry is a rule of the table ``HEDDLE``, whose type is our own. It matches IPv4 or IPv6
addresses, protocol and UDP ports, and redirects to a next hop. An entry that currently leaves its
packets to the underlay has the action to forward, at its own priority, so that no wider entry
matches them.
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
"""Key prefix in CONFIG_DB; the name of a rule follows."""
STATUS = f"ACL_RULE_TABLE|{_TABLE}|"
"""Key prefix in STATE_DB; the name of a rule follows. The field ``status`` is Active, Inactive or
Pending creation."""
ACTIVE, INACTIVE = "Active", "Inactive"
CAPABILITY_KEY = "ACL_STAGE_CAPABILITY_TABLE|INGRESS"
"""Key in STATE_DB; its field ``action_list`` lists the actions that rules may have."""
ROOM_KEYS = "CRM:ACL_TABLE_STATS:*"
ROOM_FIELD = "crm_stats_acl_entry_available"
"""Field in COUNTERS_DB: number of rules for which a table of the chip has room."""
NOTES_KEY = "HEDDLE_RULES"
"""Key in STATE_DB with a field for each rule, only of ours: the names behind its numbers."""
PORT_STATES, UP = ("admin_status", "oper_status"), "up"
"""APPL_DB: fields of ``PORT_TABLE`` and ``LAG_TABLE``, and their value for a port that is up."""
REDIRECT, ACTION = "REDIRECT_ACTION", "PACKET_ACTION"
EXACT_PRIORITY, PAIR_PRIORITY = 9000, 8000
_UDP = 17


@dataclass(frozen=True, slots=True)
class Exit:
    """The port and the neighbour's address of one link."""

    interface: str
    """Name of the port, such as ``Ethernet4``."""
    address: str
    """Address of the neighbour on the port."""

    @property
    def redirect(self) -> str:
        """The next hop as a rule names it."""
        return f"{self.address}@{self.interface}"


def port_key(interface: str) -> str:
    """Return the key in APPL_DB of a port or a portchannel."""
    table = "LAG_TABLE" if interface.startswith("PortChannel") else "PORT_TABLE"
    return f"{table}:{interface}"


def channel_of(interface: str) -> str:
    """Return the channel of notifications about the key of a port."""
    return f"__keyspace@{APPL_DB}__:{port_key(interface)}"


def table_fields(ports: str) -> dict[str, str]:
    """Return the fields of the table, bound to these ports; with none, no packet is matched."""
    return {"type": _TABLE, "policy_desc": "Heddle", "stage": "ingress", "ports@": ports}


def match_fields(match: Match, addresses: Mapping[str, str]) -> dict[str, str]:
    """Return the fields that say what a rule matches, with its priority."""
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
    """Return why no rule can match the addresses of an entry; empty if one can."""
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
    """Return the field that says what a rule does; a rule must not have both at once.

    A rule that an earlier agent wrote may have a next hop without an exit: its packets go on.
    """
    hop = {Choice.PRIMARY: group.primary, Choice.BACKUP: group.backup}.get(choice)
    way_out = exits.get(hop.port) if hop is not None else None
    return {ACTION: "FORWARD"} if way_out is None else {REDIRECT: way_out.redirect}
