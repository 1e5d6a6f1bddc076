"""Answers that are remembered with the id of the request they were given to."""

from __future__ import annotations

from typing import Any

import orjson

from heddle_controller.model.fabric import State
from heddle_controller.state.records import FabricSummary, LinkName, LinkRecord, Overlay


def link_json(record: LinkRecord) -> bytes:
    """A link's record as one JSON object."""
    return orjson.dumps(record)


def parse_link(answer: bytes) -> LinkRecord:
    """The record that ``link_json`` wrote."""
    fields = orjson.loads(answer)
    return LinkRecord(
        link=LinkName(**fields["link"]),
        gbps=fields["gbps"],
        admin_state=State(fields["admin_state"]),
        state_time=fields["state_time"],
    )


def summary_json(summary: FabricSummary) -> bytes:
    """A fabric's summary as one JSON object."""
    return orjson.dumps(summary)


def parse_summary(answer: bytes) -> FabricSummary:
    """The summary that ``summary_json`` wrote."""
    fields: dict[str, Any] = orjson.loads(answer)
    overlay = Overlay(**fields.pop("overlay"))
    return FabricSummary(**fields, overlay=overlay)
