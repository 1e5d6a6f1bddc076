"""Reports of drills and campaigns: pages that the emulator wrote into a folder of the operator.

The controller knows nothing of drills. It shows the folder to who may look, under a policy by which
a page can reach nothing: not even this controller.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from heddle_controller.serve import errors
from heddle_controller.web.access import HEADERS

_MOST_TOLD = 1000
"""Reports that are listed."""
_MOST_BYTES = 64 << 20
"""Bytes of a page that is shown."""
REPORT_HEADERS: Mapping[str, str] = {
    **HEADERS,
    "cache-control": "private, no-cache",
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}
"""A report has its style and script within it, and names that script by its hash."""


def reports_in(folder: Path) -> list[dict[str, str | float]]:
    """Name and time (Unix seconds) of each page, the newest first; none without a folder."""
    found: list[tuple[float, str]] = []
    for path in folder.glob("*.html"):
        with suppress(OSError):  # it may go meanwhile
            found.append((path.stat().st_mtime, path.name))
    found.sort(key=lambda one: (-one[0], one[1]))
    return [{"name": name, "time": time} for time, name in found[:_MOST_TOLD]]


def report_page(folder: Path | None, name: str) -> bytes:
    """A page of the folder.

    Raises:
        Refusal: NOT_FOUND where there is none of that name.
    """
    if folder is None:
        raise errors.not_found("NO_REPORT", "this controller was started without --web-reports")
    path = folder / name
    if not name.endswith(".html") or name.startswith(".") or path.parent != folder:
        raise errors.not_found("NO_REPORT", "reports are pages: see /reports/index.html")
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise errors.not_found("NO_REPORT", f"the report is larger than {_MOST_BYTES:,} bytes")
        return path.read_bytes()
    except (OSError, ValueError):  # a name with a NUL
        cure = "see /api/reports, or write one with heddle-emulator drill FILE --report FOLDER"
        raise errors.not_found("NO_REPORT", f"there is no such report: {cure}") from None
