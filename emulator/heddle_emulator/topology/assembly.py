"""Build a fabric from blocks of equal nodes and arrays of links.

Builders describe a fabric in blocks ("the leaves", "the NICs") and index arithmetic. This module
turns blocks into the columns of a ``Fabric``. No Python code runs per link, and per node only to
write its names, so 24,576 NICs take well under a second.

Addresses are assigned in the order of the rows: NICs from 10.0.0.0/8, switches (their loopbacks)
from 100.64.0.0/10. So no two nodes of a fabric share an address.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv6Address

import numpy as np
import numpy.typing as npt

from heddle_controller.model.arrays import NONE, Floats, Ints
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import (
    Fabric,
    Forwarding,
    Links,
    NodeKind,
    Nodes,
    State,
    Structure,
)

NIC_NET = 10 << 24
SWITCH_NET = (100 << 24) + (64 << 16)
NIC_NET_IPV6, SWITCH_NET_IPV6 = int(IPv6Address("fd00:10::")), int(IPv6Address("fd00:100::"))
_MOST = 10**10
"""Most for the product of a builder's counts: far above the largest published cluster."""


@dataclass(slots=True)
class Assembly:
    """A fabric under construction; ``build`` returns the result."""

    name: str
    table_size: int = NONE
    """Exact-match entries of every switch; ``NONE`` means unlimited."""
    _ids: list[str] = field(default_factory=list)
    _columns: dict[str, list[Ints]] = field(default_factory=dict)
    _ends: list[Ints] = field(default_factory=list)
    _keys: list[Ints] = field(default_factory=list)
    _gbps: list[Floats] = field(default_factory=list)

    def nodes(
        self,
        kind: NodeKind,
        ids: list[str],
        *,
        zone: npt.ArrayLike = NONE,
        rail: npt.ArrayLike = NONE,
        plane: npt.ArrayLike = NONE,
        host: npt.ArrayLike = NONE,
    ) -> Ints:
        """Add nodes of one kind, return their rows; columns are scalars or one value per node."""
        first, count = len(self._ids), len(ids)
        self._ids += ids
        sized = NONE if kind == NodeKind.NIC else self.table_size
        for column, values in {
            "kind": int(kind),
            "zone": zone,
            "rail": rail,
            "plane": plane,
            "host": host,
            "table_size": sized,
            "gpu": NONE,
            "forwarding": int(Forwarding.PROGRAMMED),
        }.items():
            block = np.broadcast_to(np.asarray(values, dtype=np.int64), (count,))
            self._columns.setdefault(column, []).append(block)
        return np.arange(first, first + count, dtype=np.int64)

    def links(self, a: Ints, b: Ints, gbps: float, parallel: int = 1) -> None:
        """Join ``a[i]`` to ``b[i]`` by ``parallel`` links of ``gbps`` each, with keys from 0."""
        ends = np.stack(np.broadcast_arrays(a.ravel(), b.ravel()))
        self._ends.append(np.repeat(ends, parallel, axis=1))
        self._keys.append(np.tile(np.arange(parallel, dtype=np.int64), ends.shape[1]))
        self._gbps.append(np.full(ends.shape[1] * parallel, float(gbps)))

    def build(self, zone_names: Sequence[str], host_names: Sequence[str]) -> Fabric:
        """Return the fabric, with everything in it up."""
        columns = {name: np.concatenate(blocks) for name, blocks in self._columns.items()}
        ends = np.concatenate(self._ends, axis=1)
        nodes = Nodes(ids=tuple(self._ids), address=_addresses(columns["kind"]), **columns)
        links = Links(
            a=ends[0],
            b=ends[1],
            key=tuple(np.concatenate(self._keys).tolist()),
            gbps=np.concatenate(self._gbps),
        )
        return Fabric(
            Structure(self.name, nodes, links, tuple(zone_names), tuple(host_names)),
            link_state=np.full(ends.shape[1], State.UP, dtype=np.int64),
            node_state=np.full(len(self._ids), State.UP, dtype=np.int64),
        )


def hashing(fabric: Fabric, zones: Sequence[str] = ()) -> Fabric:
    """Return the fabric with switches that only hash: those of some zones, or all."""
    structure = fabric.structure
    chosen = structure.nodes.kind != NodeKind.NIC
    if zones:
        named = [row for row, zone in enumerate(structure.zone_names) if zone in zones]
        chosen &= np.isin(structure.nodes.zone, named)
    forwarding = np.where(chosen, Forwarding.ECMP, structure.nodes.forwarding)
    nodes = replace(structure.nodes, forwarding=forwarding.astype(np.int64))
    return replace(fabric, structure=replace(structure, nodes=nodes))


def with_ipv6(fabric: Fabric) -> Fabric:
    """Return the fabric with IPv6 addresses: NICs fd00:10::/64, switches fd00:100::/64."""
    nic = fabric.structure.nodes.kind == NodeKind.NIC
    serial = np.where(nic, np.cumsum(nic), np.cumsum(~nic)).tolist()
    nets = [NIC_NET_IPV6 if one else SWITCH_NET_IPV6 for one in nic.tolist()]
    addresses = tuple(
        str(IPv6Address(net + number)) for net, number in zip(nets, serial, strict=True)
    )
    nodes = replace(fabric.structure.nodes, address=addresses)
    return replace(fabric, structure=replace(fabric.structure, nodes=nodes))


def _addresses(kind: Ints) -> tuple[str, ...]:
    nic = kind == NodeKind.NIC
    serial = np.where(nic, np.cumsum(nic), np.cumsum(~nic))
    number = np.where(nic, NIC_NET, SWITCH_NET) + serial
    parts = [((number >> shift) & 255).tolist() for shift in (24, 16, 8, 0)]
    return tuple(f"{a}.{b}.{c}.{d}" for a, b, c, d in zip(*parts, strict=True))


def numbered(prefix: str, count: int) -> list[str]:
    """Return names of ``prefix`` and a number from 0, padded so that names sort like numbers."""
    width = len(str(max(count - 1, 0)))
    return [f"{prefix}{number:0{width}d}" for number in range(count)]


def counts(builder: str, **values: int) -> None:
    """Refuse counts below 1, and counts that together make more than a machine can hold.

    Raises:
        InputError: The message names the first wrong option and the cure.
    """
    for option, value in values.items():
        if value < 1:
            shown = option.replace("_", "-")
            raise refuse(f"topology {builder}", shown, f"is {value}; give 1 or more")
    if math.prod(values.values()) > _MOST:
        option = max(values, key=lambda name: values[name])
        reason = f"is {values[option]:,}, too many together with the other counts; give less"
        raise refuse(f"topology {builder}", option.replace("_", "-"), reason)


def speeds(builder: str, **values: float) -> None:
    """Refuse speeds that are not above 0 and finite.

    Raises:
        InputError: The message names the first wrong option.
    """
    for option, value in values.items():
        if not (np.isfinite(value) and value > 0):
            shown = option.replace("_", "-")
            raise refuse(f"topology {builder}", shown, f"is {value:g}; give a number above 0")


@dataclass(frozen=True, slots=True)
class Racks:
    """What is attached to each leaf, or pair of leaves: whole hosts, as in a rack.

    Every NIC of a host is on the host's leaf. A NIC's rail is its place in the host. The last host
    of a leaf is smaller if ``nics_per_host`` does not divide ``nics_per_leaf``.
    """

    nics_per_leaf: int
    nics_per_host: int
    nic_gbps: float

    def hang(self, assembly: Assembly, leaves: Ints, names: list[str], zone: Ints) -> list[str]:
        """Add and join the NICs of all racks, in order; return the host names.

        ``leaves`` has shape (racks,), or (racks, leaves of each) if NICs have a link to each of
        them.
        """
        per_leaf = -(-self.nics_per_leaf // self.nics_per_host)
        hosts = [f"{leaf}-{host}" for leaf in names for host in numbered("h", per_leaf)]
        place = np.arange(self.nics_per_leaf, dtype=np.int64)
        first = np.arange(len(leaves), dtype=np.int64)[:, None] * per_leaf
        host = (first + place // self.nics_per_host).ravel()
        rail = np.tile(place % self.nics_per_host, len(leaves))
        pairs = zip(host.tolist(), rail.tolist(), strict=True)
        nics = assembly.nodes(
            NodeKind.NIC,
            [f"{hosts[row]}-n{number}" for row, number in pairs],
            host=host,
            rail=rail,
            zone=np.repeat(zone, self.nics_per_leaf),
        )
        of_rack = leaves.reshape(len(leaves), -1)
        ends = np.repeat(of_rack, self.nics_per_leaf, axis=0)
        assembly.links(np.repeat(nics, ends.shape[1]), ends.ravel(), self.nic_gbps)
        return hosts
