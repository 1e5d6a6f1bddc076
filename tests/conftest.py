"""What every test gets: hypothesis in a form whose failures can be run again."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings

# No deadline: a shared machine stalls for longer than any example takes.
settings.register_profile(
    "house",
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose hypothesis' seed here unless one was given, so that the header can name it."""
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = random.randrange(2**32)


def pytest_report_header(config: pytest.Config) -> str:
    """The seed, in the form that takes it back."""
    return f"hypothesis: --hypothesis-seed={config.option.hypothesis_seed}"
