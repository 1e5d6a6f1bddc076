"""Find Chromium for tests that open pages, with the options that they start it with."""

from __future__ import annotations

import shutil

from tests.support.needs import missing

NAMES = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")
QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--force-color-profile=srgb", "--enable-logging=stderr",
    "--allow-pre-commit-input",
)  # fmt: skip


def browser() -> str:
    """Return the path of a Chromium program; without one, skip the test, or fail it in CI."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return found or missing("needs Chromium: on Debian, apt-get install chromium")
