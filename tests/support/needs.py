"""What a test needs of the machine and this one may lack.

On a developer's machine the test is skipped and says what would let it run; in CI,
which is set up to run everything, that is a failure.
"""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(reason: str) -> NoReturn:
    """Skip the running test for want of something, or fail it where ``CI`` is "true"."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"in CI nothing may be missing: {reason}", pytrace=False)
    pytest.skip(reason)
