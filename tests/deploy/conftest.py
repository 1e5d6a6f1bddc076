"""Fixtures that take minutes to make, and are made once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bare_debian import bare, build


@pytest.fixture(scope="session")
def debs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Both Debian packages, by name."""
    folder = tmp_path_factory.mktemp("debs")
    yield {f"heddle-{name}": build(name, folder) for name in ("agent", "controller")}
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A bare Debian system."""
    folder = tmp_path_factory.mktemp("debian")
    yield bare(folder)
    shutil.rmtree(folder)
