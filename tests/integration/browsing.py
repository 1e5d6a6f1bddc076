"""Chromium: where it is, and how it is started for pages that are looked at by tests."""

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
    """The browser's path; the test is skipped where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return found or missing("needs Chromium: on Debian, apt-get install chromium")
