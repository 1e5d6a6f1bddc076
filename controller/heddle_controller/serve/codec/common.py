"""Values of common.proto: states, classes, links, certificates.

The model counts enums from 0. Messages count them from 1, and 0 means unspecified. Only the codecs
know about this difference.
"""

from __future__ import annotations

from collections.abc import Sequence

from heddle.v1 import common_pb2 as pb
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric, LinkKey, State
from heddle_controller.model.flows import TrafficClass
from heddle_controller.model.plan import Certificate, Turn
from heddle_controller.state.fabrics import parallel_links
from heddle_controller.state.records import LinkName


def state_to_pb(state: int) -> pb.State.ValueType:
    """Return a state as its message value."""
    return pb.State.ValueType(state + 1)


def state_from_pb(value: int, field: str) -> State:
    """Return the state of a required field.

    Raises:
        InputError: it is unspecified or unknown.
    """
    if not pb.STATE_UP <= value <= pb.STATE_DRAINED:
        raise refuse("request", field, f"{_said(value)}: use STATE_UP, STATE_DOWN or STATE_DRAINED")
    return State(value - 1)


def class_to_pb(traffic_class: int) -> pb.TrafficClass.ValueType:
    """Return a traffic class as its message value."""
    return pb.TrafficClass.ValueType(traffic_class + 1)


def class_from_pb(value: int, field: str) -> TrafficClass:
    """Return a traffic class; unspecified means BANDWIDTH.

    Raises:
        InputError: it is unknown.
    """
    if not 0 <= value <= pb.TRAFFIC_CLASS_LATENCY:
        cure = "use TRAFFIC_CLASS_BANDWIDTH or TRAFFIC_CLASS_LATENCY"
        raise refuse("request", field, f"{_said(value)}: {cure}")
    return TrafficClass(max(value - 1, 0))


def _said(value: int) -> str:
    return f"{value} is not known" if value else "it is not said"


LONGEST_NUMBER = 18
"""Most digits of a link key that counts as a number."""


def key_from_pb(key: str) -> LinkKey:
    """Return a link key: an integer if it is written like one, as in most fabric files."""
    short = len(key) <= LONGEST_NUMBER and key.isascii() and key.isdecimal()
    return int(key) if short and str(int(key)) == key else key


def link_name_from_pb(link: pb.LinkRef) -> LinkName:
    """Return the name of a link; an empty key means "0"."""
    return LinkName(link.source, link.target, key_from_pb(link.key or "0"))


def asked_link(link: pb.LinkRef) -> LinkName:
    """Return the name of a link in a request: without a key if the request gives none."""
    return LinkName(link.source, link.target, link.key)


def link_named(fabric: Fabric, text: str) -> pb.LinkRef | None:
    """Return the link that ``A,B`` or ``A,B,KEY`` names in a fabric, whose ids may have commas.

    It has no key if the text does not say which of several links it means. None if there is none.
    """
    rows = fabric.links_named(text)
    if not rows:
        return None
    ids, links = fabric.structure.nodes.ids, fabric.structure.links
    key = str(links.key[rows[0]]) if len(rows) == 1 else ""
    return pb.LinkRef(source=ids[links.a[rows[0]]], target=ids[links.b[rows[0]]], key=key)


def find_link(fabric: Fabric, link: pb.LinkRef, field: str) -> int:
    """Return the row of a named link; the key may be empty if there is one link between its ends.

    Raises:
        InputError: there is no such link, or there are several and no key.
    """
    name = asked_link(link)
    rows = fabric.find_links(name.source, name.target, link.key or None)
    if not rows:
        named = str(name)
        reason = f"link {named!r} is not in the fabric: see heddle fabric show --links"
        raise refuse("request", field, reason)
    if len(rows) > 1:
        raise refuse("request", field, parallel_links(fabric, name, rows))
    return rows[0]


def certificate_to_pb(certificate: Certificate) -> pb.Certificate:
    """Return a certificate as a message."""
    return pb.Certificate(
        max_utilization=certificate.max_utilization,
        lower_bound=certificate.lower_bound,
        gap=certificate.gap,
        proof=certificate.proof,
        tiers=[
            pb.TierCertificate(
                tier=t.tier, max_utilization=t.max_utilization, lower_bound=t.lower_bound
            )
            for t in certificate.tiers
        ],
        after_loss=[
            pb.AfterLoss(
                kind=one.kind,
                worst_utilization=one.worst_utilization,
                slowest_flow=one.slowest_flow,
                of=one.of,
                lower_bound=one.lower_bound,
                stranded=one.stranded,
            )
            for one in certificate.after_loss
        ],
        turns=None if certificate.turns is None else _turns_to_pb(certificate.turns),
        unprotected_count=certificate.unprotected,
        unprotected_flows=certificate.unprotected_flows,
    )


def _turns_to_pb(turns: Sequence[Turn]) -> pb.Turns:
    return pb.Turns(
        jobs=[
            pb.Turn(
                job=one.job,
                shift_seconds=one.shift_seconds,
                pace_seconds=one.pace_seconds,
                saved=one.saved,
            )
            for one in turns
        ]
    )
