"""Ports of a job as environment variables, for programs that take ports from their environment.

Such variables give one list for the whole process: QP i of every connection has the i-th port. So
they are set where all flows that leave this host for a job have the same ports, as is so wherever
no two flows share a pair of NICs; elsewhere the file says why not.

- Mooncake, ``MC_MLX5_QP_UDP_SPORTS``: n ports parted by commas; QP i of a connection has the
  i mod n-th. It needs a Mooncake that is built with USE_MLX5DV.
- MORI, ``MORI_MLX5_ENABLE_UDP_SPORT=1`` and ``MORI_GOR_PORT``: four ports; QP i has the i mod 4-th.

- Our own preload library, ``HEDDLE_PRELOAD_PORTS``: the file of lines beside that of JSON. It has
  ports for each pair of addresses, so it is always set.

UCCL's ``UCCL_UDP_SPORT_BASE`` gives one base, and it is not documented which QP then has which
port: nothing is written for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MORI_PORTS = 4
"""As many ports MORI has, and goes round them."""


def environment_text(document: Mapping[str, Any], path: Path, writer: str) -> str:
    """The lines of an environment file.

    Args:
        document: The ports of a job, see ``heddle.ports``.
        path: The file that holds them as JSON; that of lines is beside it, ending in ``.ports``.
        writer: Which program writes these lines.
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
