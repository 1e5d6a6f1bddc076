"""Pages in Chromium: what they say, where their parts are, what is logged, and how they look.

The browser is asked once for everything. Where parts are, and what a script of the page answers
to a pointer, is found by a script of ours that is put at the end of a copy of the page and
leaves its findings in it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import struct
import subprocess
import zlib
from dataclasses import dataclass
from functools import cached_property
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.needs import missing

NAMES = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")
QUIET = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--hide-scrollbars", "--force-color-profile=srgb", "--enable-logging=stderr",
)  # fmt: skip
DARK = "--blink-settings=preferredColorScheme=0"
SECONDS = 300
CONSOLE = re.compile(r":CONSOLE[:(].*")
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
    """A page as the browser had it."""

    dom: str
    console: list[str]
    """What the page or the browser logged: errors, refusals, warnings."""
    found: dict[str, Any]
    """Boxes by selector, each as left, top, width, height; and ``tips``, ``wide``, ``shown``."""
    picture: bytes
    """A PNG of the window."""

    @cached_property
    def pixels(self) -> Pixels:
        """Shape (height, width, 3)."""
        return read_png(self.picture)

    def part(self, box: list[int]) -> Pixels:
        """The pixels of a box."""
        left, top, width, height = box
        return self.pixels[top : top + height, left : left + width]


def browser() -> str:
    """The browser's path; the test is skipped where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return found or missing("needs Chromium: on Debian, apt-get install chromium")


def look(
    text: str, folder: Path, selectors: list[str], *, size: tuple[int, int], dark: bool = False
) -> Evaluation:
    """Open a page in a window of some width and height."""
    path, picture = folder / "page.html", folder / "page.png"
    path.write_text(_probed(text, selectors), encoding="utf-8")
    width, height = size
    options = [*QUIET, *([DARK] if dark else []), f"--user-data-dir={folder / 'profile'}"]
    asked = [f"--window-size={width},{height}", f"--screenshot={picture}", "--dump-dom"]
    command = [browser(), *options, *asked, path.as_uri()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    told = re.search(r'<pre id="probe" hidden="">(.*?)</pre>', ran.stdout, re.DOTALL)
    assert told is not None, ran.stderr
    return Evaluation(
        dom=ran.stdout,
        console=CONSOLE.findall(ran.stderr),
        found=json.loads(unescape(told[1])),
        picture=picture.read_bytes(),
    )


def _probed(text: str, selectors: list[str]) -> str:
    """The page with our script, which it has to allow by its hash as it does its own."""
    probe = PROBE % json.dumps(selectors)
    allowed = base64.b64encode(hashlib.sha256(probe.encode()).digest()).decode("ascii")
    text = text.replace("script-src ", f"script-src 'sha256-{allowed}' ", 1)
    return text.replace("</body>", f"<script>{probe}</script></body>")


def read_png(data: bytes) -> Pixels:
    """The pixels of a PNG of 8 bits a colour, as browsers write them; shape (height, width, 3)."""
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
    told = lines[:, 1:].reshape(height, width, {2: 3, 6: 4}[colour])[:, :, :3]
    return _whole(lines[:, 0], told)


def _whole(kinds: Pixels, told: Pixels) -> Pixels:
    """Undo the filters: each byte is told as what it differs from a guess by its neighbours.

    A pixel waits for those to its left and above, so pixels of one diagonal are done at once.
    """
    height, width, _ = told.shape
    done = np.zeros((height + 1, width + 1, 3), dtype=np.int16)
    for diagonal in range(width + height - 1):
        row = np.arange(max(0, diagonal - width + 1), min(diagonal, height - 1) + 1)
        column = diagonal - row
        left, up, corner = done[row + 1, column], done[row, column + 1], done[row, column]
        way = np.abs(up - corner), np.abs(left - corner), np.abs(left + up - 2 * corner)
        nearest = np.where((way[0] <= way[1]) & (way[0] <= way[2]), left,
                           np.where(way[1] <= way[2], up, corner))  # fmt: skip
        guesses = [np.zeros_like(left), left, up, (left + up) // 2, nearest]
        guess = np.choose(kinds[row][:, None], guesses)
        done[row + 1, column + 1] = (told[row, column] + guess) % 256
    return done[1:, 1:].astype(np.uint8)
