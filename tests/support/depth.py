"""How many examples a test draws: few in `make test`, many in `make deep`.

A test that draws more in `make deep` carries `@pytest.mark.deep`; that is how
`make deep` finds it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

DEEP = os.environ.get("HEDDLE_TEST_DEPTH") == "deep"
"""Whether this run is `make deep`."""


def examples(quick: int, deep: int = 2000) -> int:
    """Return the number of examples: ``quick`` in `make test`, ``deep`` in `make deep`."""
    return deep if DEEP else quick


def fresh_seeds(quick: int, deep: int = 2000) -> Iterator[int]:
    """Return seeds for cases that a test draws: new ones in `make deep`, else always the same.

    So `make test` never fails by chance. A failing test must print the seed of its case.
    ``HEDDLE_TEST_SEED`` sets the first seed, so that the first case is the one that failed.
    """
    given = os.environ.get("HEDDLE_TEST_SEED")
    first = random.randrange(2**32) if DEEP else 0
    if given:
        first = int(given)
    return iter(range(first, first + examples(quick, deep)))
