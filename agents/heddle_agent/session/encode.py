"""Encodes the agent's values as messages to the controller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from google.protobuf.timestamp_pb2 import Timestamp

from heddle.v1 import agent_pb2 as pb
from heddle.v1 import common_pb2
from heddle_agent.fib import Count, Group, Match, Nic, Reason
from heddle_agent.session.listing import MOST_TOLD, listing
from heddle_agent.table import Forwarding, Held, LinkObservation, Receipt, Status

_STATUSES = {status: pb.PushStatus.Value(f"PUSH_STATUS_{status.name}") for status in Status}
_REASONS = {reason: pb.FailureReason.Value(f"FAILURE_REASON_{reason.name}") for reason in Reason}


@dataclass(frozen=True, slots=True)
class Identity:
    """Who an agent is, for as long as its process lives."""

    fabric: str
    """Resource name of the fabric, such as "fabrics/f1"."""
    switch: str
    instance_id: str
    software_version: str
    peer_address: str = ""
    """Where other agents reach this one; empty if it wants no peers or keys from controllers."""


def timestamp(seconds: float) -> Timestamp:
    """Encode Unix seconds, rounded to a microsecond, which is the precision of a float."""
    whole, micros = divmod(round(seconds * 1e6), 10**6)
    return Timestamp(seconds=whole, nanos=micros * 1000)


def parameters(identity: Identity, forwarding: Forwarding) -> pb.AgentMessage:
    """Return the first message of a session."""
    held = forwarding.held
    names = sorted(capability.name for capability in forwarding.fib.capabilities)
    return pb.AgentMessage(
        session_parameters=pb.SessionParameters(
            fabric=identity.fabric,
            switch=identity.switch,
            instance_id=identity.instance_id,
            software_version=identity.software_version,
            capabilities=[pb.Capability.Value(f"CAPABILITY_{name}") for name in names],
            table_size=forwarding.fib.table_size,
            highest_epoch=held.epoch,
            generation=held.generation,
            table_digest=forwarding.digest(),
            peer_address=identity.peer_address,
            overlay_withdrawn=forwarding.fib.withdrawn,
            highest_generation=forwarding.table.fence.generation,
        )
    )


def push_result(
    push: pb.Push,
    stage: pb.PushStage.ValueType,
    receipt: Receipt,
    highest_epoch: int,
    table: pb.TableState | None = None,
) -> pb.AgentMessage:
    """Return the answer to one stage of a push, with ``table`` if the push asked for it."""
    answer = pb.AgentMessage()
    result = answer.push_result  # filled in place, because assigning a message copies it
    result.nonce = push.nonce
    result.epoch = push.epoch
    result.generation = push.generation
    result.stage = stage
    result.status = _STATUSES[receipt.status]
    result.highest_epoch = highest_epoch
    result.message = receipt.message
    for operation, reason, text in receipt.failures:
        result.failures.add(operation=operation, reason=_REASONS[reason], message=text)
    if table is not None:
        result.table.CopyFrom(table)
    return answer


def table_state(held: Held, digest: bytes, entries: Mapping[Match, Group] | None) -> pb.TableState:
    """Return what the switch holds; with ``entries`` if none are dirty and they are few enough."""
    state = pb.TableState(generation=held.generation, digest=digest)
    if entries is not None and not held.dirty and len(entries) <= MOST_TOLD:
        state.entries.CopyFrom(listing(entries))
    return state


def link_report(observations: Iterable[LinkObservation], *, full: bool) -> pb.AgentMessage:
    """Return a report of changed links, or of all links if ``full``."""
    links = [
        pb.LinkObservation(
            link=common_pb2.LinkRef(source=link.source, target=link.target, key=link.key),
            state=common_pb2.STATE_UP if up else common_pb2.STATE_DOWN,
            time=timestamp(time),
            sequence=sequence,
            reason=reason,
            loss_ratio=loss,
            rate_ratio=rate,
        )
        for link, up, time, sequence, reason, loss, rate in observations
    ]
    return pb.AgentMessage(link_state=pb.LinkStateReport(links=links, full=full))


def counter_report(
    counts: Mapping[Match, Count], unmatched: Mapping[tuple[Nic, Nic], Count], now: float
) -> pb.AgentMessage:
    """Return counters of entries, and of unmatched packets by pair of NICs, at time ``now``.

    Entries that differ only in the destination port are added up.
    """
    sums: dict[tuple[str, str, int], list[int]] = {}
    for (source, destination, source_port, _), count in counts.items():
        total = sums.setdefault((source, destination, source_port), [0, 0])
        total[0] += count.packets
        total[1] += count.bytes
    pairs = [(Nic(source), Nic(destination)) for source, destination, _ in sums]
    ends = dict.fromkeys(nic for pair in (*pairs, *unmatched) for nic in pair)
    rows = {nic: row for row, nic in enumerate(ends)}
    return pb.AgentMessage(
        counters=pb.CounterReport(
            time=timestamp(now),
            endpoints=[pb.Endpoint(nic=nic.id, address=nic.address) for nic in rows],
            sources=[rows[source] for source, _ in pairs],
            destinations=[rows[destination] for _, destination in pairs],
            source_ports=[port for _, _, port in sums],
            packets=[packets for packets, _ in sums.values()],
            bytes=[size for _, size in sums.values()],
            unmatched_sources=[rows[source] for source, _ in unmatched],
            unmatched_destinations=[rows[destination] for _, destination in unmatched],
            unmatched_packets=[count.packets for count in unmatched.values()],
            unmatched_bytes=[count.bytes for count in unmatched.values()],
        )
    )
