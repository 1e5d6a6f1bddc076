"""Ports of a job as environment variables, for programs that read them from there.

Such a variable gives one list for the whole process: QP i of every connection gets the i-th port.
So it is set only if all flows that leave this host for a job have the same ports, which is the case
wherever no two flows share a pair of NICs. Otherwise the file says why it is not set.

- Mooncake, ``MC_MLX5_QP_UDP_SPORTS``: n ports separated by commas; QP i of a connection gets port
  i mod n. Mooncake must be built with USE_MLX5DV.
- MORI, ``MORI_MLX5_ENABLE_UDP_SPORT=1`` and ``MORI_GOR_PORT``: four ports; QP i gets port i mod 4.
- Heddle's preload library, ``HEDDLE_PRELOAD_PORTS``: the path of the file with lines, which is next
  to the JSON file. It has ports for each pair of addresses, so it is always set.

Nothing is written for UCCL's ``UCCL_UDP_SPORT_BASE``: it gives one base, and it is not documented
which QP then gets which port.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MORI_PORTS = 4
"""Number of ports that MORI takes and uses in rotation."""


def environment_text(document: Mapping[str, Any], path: Path, writer: str) -> str:
    """Return the content of an environment file.

    Args:
        document: The ports of a job; see ``heddle.ports``.
        path: The JSON file that holds them. The file with lines has the same name with ``.ports``.
        writer: Name of the program that writes the file.
    """
    lines = [
        f"# Written by {writer}; which UDP source port each QP of one job has to use.",
        f"HEDDLE_PORTS_FILE={path}",
        f"HEDDLE_PRELOAD_PORTS={path.with_suffix('.ports')}",
    ]
    lists = {tuple(flow["ports"]) for flow in document["flows"]}
    if len(lists) == 1:
        (ports,) = lists
        lines += [f"MC_MLX5_QP_UDP_SPORTS={_list(ports)}", *_mori(ports)]
    else:
        lines.append("# No MC_MLX5_QP_UDP_SPORTS and no MORI_GOR_PORT: each is one list for a")
        lines.append("# whole process, and the flows of this job have different ports.")
    lines.append("# No UCCL_UDP_SPORT_BASE: it is not documented which QP then has which port.")
    return "\n".join([*lines, ""])


def _mori(ports: Sequence[int]) -> list[str]:
    if MORI_PORTS % len(ports):
        return [f"# No MORI_GOR_PORT: MORI goes round {MORI_PORTS} ports, flows have {len(ports)}."]
    four = [*ports] * (MORI_PORTS // len(ports))
    return ["MORI_MLX5_ENABLE_UDP_SPORT=1", f"MORI_GOR_PORT={_list(four)}"]


def _list(ports: Sequence[int]) -> str:
    return ",".join(map(str, ports))
