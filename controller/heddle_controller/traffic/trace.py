"""Traces of collectives: AICB's CSV and SimAI's workload form, told apart by their first line."""

from __future__ import annotations

from pathlib import Path

from heddle_controller.model.files.content import open_content
from heddle_controller.traffic import aicb, simai
from heddle_controller.traffic.lines import MOST_BYTES_OF_TRACE, Lines
from heddle_controller.traffic.summary import Trace


def load_trace(path: Path) -> Trace:
    """Read a trace, plain or gzip, in AICB's CSV or SimAI's workload form.

    Raises:
        InputError: the file cannot be read or is neither; with the line to blame.
    """
    with open_content(path, MOST_BYTES_OF_TRACE) as file:
        lines = Lines(file, path)
        first = next((line for line in lines if line.strip()), "")
        if simai.is_header(first):
            return simai.parse_simai(first, lines)
        return aicb.parse_aicb(first, lines)
