"""Keys and fields of SONiC's databases, as its configuration guide and its ACL schema name them.

An entry is a rule of the table ``HEDDLE``, whose type is our own: it matches addresses, protocol
and UDP ports, and redirects to a next hop. An entry that is left to the underlay for now forwards,
at its own priority, so that no wider entry takes its packets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from heddle_agent.fib.values import Choice, Group, Match

APPL_DB, COUNTERS_DB, CONFIG_DB, STATE_DB = 0, 2, 4, 6
"""Numbers of the databases."""
TABLE = "HEDDLE"
TYPE_KEY = f"ACL_TABLE_TYPE|{TABLE}"
TYPE = {
    "MATCHES@": "SRC_IP,DST_IP,IP_PROTOCOL,L4_SRC_PORT,L4_DST_PORT",
    "ACTIONS@": "PACKET_ACTION,REDIRECT_ACTION",
    "BIND_POINTS@": "PORT",
}
TABLE_KEY = f"ACL_TABLE|{TABLE}"
RULES = f"ACL_RULE|{TABLE}|"
"""CONFIG_DB; a name follows."""
STATUS = f"ACL_RULE_TABLE|{TABLE}|"
"""STATE_DB; likewise. Its field ``status`` is Active, Inactive or Pending creation."""
ACTIVE, INACTIVE = "Active", "Inactive"
CAPABILITY_KEY = "ACL_STAGE_CAPABILITY_TABLE|INGRESS"
"""STATE_DB; its field ``action_list`` names what rules may do."""
ROOM_KEYS = "CRM:ACL_TABLE_STATS:*"
ROOM_FIELD = "crm_stats_acl_entry_available"
"""COUNTERS_DB: rules for which a table of the chip has room."""
NOTES_KEY = "HEDDLE_RULES"
"""STATE_DB: a field for each rule, ours alone: the names behind its numbers."""
REDIRECT, ACTION = "REDIRECT_ACTION", "PACKET_ACTION"
EXACT_PRIORITY, PAIR_PRIORITY = 9000, 8000
_UDP = 17


@dataclass(frozen=True, slots=True)
class Exit:
    """Where a link of the fabric is plugged in."""

    interface: str
    """Name of the port, ``Ethernet4``."""
    address: str
    """The neighbour's IPv4 address on it."""

    @property
    def redirect(self) -> str:
        """As a rule names it."""
        return f"{self.address}@{self.interface}"


def table_fields(ports: str) -> dict[str, str]:
    """The table, bound to some ports; to none, no packet is matched."""
    return {"type": TABLE, "policy_desc": "Heddle", "stage": "ingress", "ports@": ports}


def match_fields(match: Match, addresses: Mapping[str, str]) -> dict[str, str]:
    """What a rule matches."""
    source, destination, *ports = match
    fields = {
        "PRIORITY": str(EXACT_PRIORITY if any(ports) else PAIR_PRIORITY),
        "SRC_IP": f"{addresses[source]}/32",
        "DST_IP": f"{addresses[destination]}/32",
        "IP_PROTOCOL": str(_UDP),
    }
    names = ("L4_SRC_PORT", "L4_DST_PORT")
    return fields | {name: str(port) for name, port in zip(names, ports, strict=True) if port}


def action_fields(
    group: Group, choice: Choice, exits: Mapping[tuple[str, str], Exit]
) -> dict[str, str]:
    """What a rule does: one field, and never both at once."""
    hop = {Choice.PRIMARY: group.primary, Choice.BACKUP: group.backup}.get(choice)
    return {ACTION: "FORWARD"} if hop is None else {REDIRECT: exits[hop.port].redirect}
