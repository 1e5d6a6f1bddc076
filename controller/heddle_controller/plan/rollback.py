"""Where flows begin that are planned from an earlier plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.flows import concatenate, unannounced_rows
from heddle_controller.model.plan import NicPorts, Paths, Plan, join_paths


def with_newer_flows(earlier: Plan, newest: Plan) -> Plan:
    """Return an earlier plan with the flows that came since then, on the paths that they have now.

    Unannounced flows are not taken over. The result is a plan to begin from: its certificate is
    that of the earlier plan. Returns the earlier plan itself if no flow came, or if the two plans
    are of fabrics with other nodes or links.
    """
    known = set(earlier.flows.ids)
    came = np.array([one not in known for one in newest.flows.ids], dtype=np.bool_)
    came[unannounced_rows(newest.flows)] = False
    if not came.any() or earlier.fabric.structure is not newest.fabric.structure:
        return earlier
    count, place = len(earlier.flows), np.cumsum(came) - 1
    some = np.flatnonzero(came[newest.paths.flow])

    def joined(before: Paths, now: Paths) -> Paths:
        now = now.take(some)
        return join_paths([before, replace(now, flow=count + place[now.flow])])

    reasons = {count + int(place[row]): why for row, why in newest.unrouted.items() if came[row]}
    return replace(
        earlier,
        flows=concatenate([earlier.flows, newest.flows.take(np.flatnonzero(came))]),
        paths=joined(earlier.paths, newest.paths),
        backups=joined(earlier.backups, newest.backups),
        unrouted=earlier.unrouted | reasons,
        nic_ports=_joined_ports((earlier, newest), np.flatnonzero(came), some),
    )


def _joined_ports(plans: tuple[Plan, Plan], flows: Ints, paths: Ints) -> NicPorts | None:
    """Return the ports of one plan, then those of some flows and paths of another."""
    if all(plan.nic_ports is None for plan in plans):
        return None
    first, second = map(_ports_of, plans)
    chosen = np.zeros(len(plans[1].paths), dtype=np.bool_)
    chosen[paths] = True
    qps = np.repeat(chosen, plans[1].paths.qp_count)
    return NicPorts(
        np.append(first.port, second.port[qps]),
        np.append(first.backup, second.backup[qps]),
        np.append(first.probes, second.probes[flows]),
    )


def _ports_of(plan: Plan) -> NicPorts:
    """Return the ports of a plan, where entries may carry all of its flows."""
    if plan.nic_ports is not None:
        return plan.nic_ports
    none = np.full(int(plan.paths.qp_count.sum()), NONE, dtype=np.int64)
    return NicPorts(none, none, np.zeros(len(plan.flows), dtype=np.int64))
