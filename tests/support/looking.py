"""Files in a browser: what they say, where their parts are, what is logged, and how they look.

A script added to a copy of the page finds where parts are, and what the page's own script answers
to a pointer.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.chromium import Page

UP = 2
"""PNG filter in which each row is stored as its difference to the row above."""
PROBE = """
(() => {
  const found = {};
  const box = (one) => {
    const at = one.getBoundingClientRect();
    return [at.left + scrollX, at.top + scrollY, at.width, at.height].map(Math.round);
  };
  for (const name of %s) found[name] = [...document.querySelectorAll(name)].map(box);
  const at = (x, y) => ({clientX: x, clientY: y, bubbles: true});
  found.tips = [...document.querySelectorAll("[data-cells]")].map((picture) => {
    const here = picture.getBoundingClientRect();
    picture.dispatchEvent(new PointerEvent("pointermove", at(here.left + 2, here.top + 2)));
    const text = document.getElementById("tip").textContent;
    picture.dispatchEvent(new PointerEvent("pointerleave"));
    return text;
  });
  found.wide = document.body.scrollWidth;
  found.shown = document.body.clientWidth;
  found.scheme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const told = document.createElement("pre");
  told.id = "probe";
  told.hidden = true;
  told.textContent = JSON.stringify(found);
  document.body.append(told);
})();
"""

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A page as the browser showed it."""

    dom: str
    console: list[str]
    """What the page or the browser logged: errors, refusals, warnings."""
    found: dict[str, Any]
    """Boxes by selector (left, top, width, height); also ``tips``, ``wide``, ``shown``."""
    picture: bytes
    """A PNG of the window."""

    @cached_property
    def pixels(self) -> Pixels:
        """Pixels of the window, shape (height, width, 3)."""
        return read_png(self.picture)

    def part(self, box: list[int]) -> Pixels:
        """Return the pixels of a box."""
        left, top, width, height = box
        return self.pixels[top : top + height, left : left + width]


async def look(
    page: Page,
    text: str,
    folder: Path,
    selectors: list[str],
    *,
    size: tuple[int, int],
    dark: bool = False,
) -> Evaluation:
    """Open a file with this text in a fresh page of some width and height."""
    path = folder / "page.html"
    path.write_text(_probed(text, selectors), encoding="utf-8")
    await page.begin()
    await page.window(*size, dark=dark)
    await page.open(path.as_uri())
    await page.until("document.getElementById('probe')")
    return Evaluation(
        dom=await page.does("document.documentElement.outerHTML"),
        console=page.console,
        found=json.loads(await page.does("document.getElementById('probe').textContent")),
        picture=await page.picture(),
    )


def _probed(text: str, selectors: list[str]) -> str:
    """Add the probe to a page, and its hash to the scripts that the page allows."""
    probe = PROBE % json.dumps(selectors)
    allowed = base64.b64encode(hashlib.sha256(probe.encode()).digest()).decode("ascii")
    text = text.replace("script-src ", f"script-src 'sha256-{allowed}' ", 1)
    return text.replace("</body>", f"<script>{probe}</script></body>")


def read_png(data: bytes) -> Pixels:
    """Return the pixels of a browser's PNG, 8 bits per colour, shape (height, width, 3)."""
    place, body, header = 8, b"", b""
    while place < len(data):
        (length,) = struct.unpack_from(">I", data, place)
        kind, chunk = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        header = chunk if kind == b"IHDR" else header
        body += chunk if kind == b"IDAT" else b""
        place += 12 + length
    width, height, depth, colour = struct.unpack_from(">IIBB", header)
    assert depth == 8
    lines = np.frombuffer(zlib.decompress(body), dtype=np.uint8).reshape(height, -1)
    assert (lines[:, 0] == UP).all()
    rows: Pixels = lines[:, 1:].cumsum(axis=0, dtype=np.uint8)
    return rows.reshape(height, width, {2: 3, 6: 4}[colour])[:, :, :3]
