"""What tests of properties get: time. One test tries hundreds of cases in a row.

On two cores that seven programs shared the longest took forty seconds, not so far from the two
minutes after which any other test is taken to hang.
"""

from __future__ import annotations

from pathlib import Path

import pytest

HANGS = 300
"""Seconds after which one is taken to hang."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each in this folder so long, but for those that say themselves."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(HANGS))
