"""A headless Chromium, driven by its own protocol over a pipe, which uses pages as people do."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.integration.browsing import QUIET, browser

SECONDS = 120.0
"""Not a measure of speed: a limit for busy machines."""


_STANDING = """(async () => {
  for (let before = [NaN, NaN]; ; ) {
    const one = document.querySelector(%s);
    one?.scrollIntoView();
    await new Promise(requestAnimationFrame);
    const box = one?.getClientRects()[0];
    const now = box ? [box.left + box.width / 2, box.top + box.height / 2] : [NaN, NaN];
    if (now.every((place, axis) => place === before[axis])) return now;
    before = now;
  }
})()"""
"""The middle of an element, once it is at the same place in two frames."""
_HEARING = """
  window.missed = true;
  document.querySelector(%s).addEventListener("click", () => { window.missed = false; },
    {once: true, capture: true}); 0"""
"""Makes the window record when an element was clicked."""


class Page:
    """One page in a browser of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: int) -> None:
        self._reader = reader
        self._writer = writer
        self._number = 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._target = self._session = ""
        self.console: list[str] = []
        """Errors and warnings that the page or the browser logged, and exceptions."""

    async def read(self) -> None:
        """Read the browser's messages until it ends."""
        while True:
            try:
                said = json.loads((await self._reader.readuntil(b"\0"))[:-1])
            except asyncio.IncompleteReadError:
                return
            if "id" in said:
                self._waiting.pop(said["id"]).set_result(said)
            elif said["method"] == "Runtime.exceptionThrown":
                self.console.append(json.dumps(said["params"]["exceptionDetails"]))
            elif said["method"] == "Log.entryAdded":
                self.console.append(said["params"]["entry"]["text"])
            elif said["method"] == "Runtime.consoleAPICalled":
                self.console.append(json.dumps(said["params"]["args"]))

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and return its answer."""
        self._number += 1
        done = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._number, "method": method, "params": params, **session}
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        async with asyncio.timeout(SECONDS):
            said = await done
        assert "error" not in said, (method, said)
        result: dict[str, Any] = said["result"]
        return result

    async def begin(self) -> None:
        """Attach to a new page, close the one before, and record what the new one logs."""
        before, self._session = self._target, ""
        self._target = (await self.send("Target.createTarget", url="about:blank"))["targetId"]
        attached = await self.send("Target.attachToTarget", targetId=self._target, flatten=True)
        if before:
            await self.send("Target.closeTarget", targetId=before)
        self._session = attached["sessionId"]
        self.console = []
        for domain in ("Runtime", "Log", "Page", "Performance"):
            await self.send(f"{domain}.enable")

    async def open(self, url: str) -> None:
        """Go to an address."""
        await self.send("Page.navigate", url=url)

    async def does(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        asked = {"expression": script, "returnByValue": True, "awaitPromise": True}
        told = await self.send("Runtime.evaluate", **asked)
        assert "exceptionDetails" not in told, (script, told)
        return told["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until an expression is true in the page, or in the page that has replaced it."""
        asked = {"expression": f"Boolean({script})", "returnByValue": True}
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            told = await self.send("Runtime.evaluate", **asked)
            if "exceptionDetails" not in told and told["result"].get("value"):
                return
            await asyncio.sleep(0.02)
        text = await self.does("document.body.innerText")
        raise AssertionError(f"never: {script}\n{text}\n{self.console}")

    async def click(self, selector: str) -> None:
        """Click on the middle of an element with the mouse, until the click has hit it.

        A page that was just opened takes no clicks until it is drawn, and what is drawn later may
        move an element that stood still.
        """
        name = json.dumps(selector)
        while True:
            await self.until(f"document.querySelector({name})")
            x, y = await self.does(_STANDING % name)
            await self.does(_HEARING % name)
            for kind in ("mousePressed", "mouseReleased"):
                await self.send(
                    "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1
                )
            try:
                missed = await self.does("window.missed")
            except AssertionError:
                return  # the click led to another document
            if missed is not True:
                return

    async def key(self, name: str) -> None:
        """Press a key."""
        for kind in ("rawKeyDown", "keyUp"):
            await self.send("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    async def window(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size of the window and its colour scheme."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self) -> bytes:
        """Return a PNG of the window."""
        told = await self.send("Page.captureScreenshot", format="png", optimizeForSpeed=True)
        return base64.b64decode(told["data"])


@asynccontextmanager
async def browsing(folder: Path, *options: str) -> AsyncIterator[Page]:
    """Run a browser with one empty page; end it at exit."""
    to_read, to_write = os.pipe(), os.pipe()
    for end in (to_read[1], to_write[0]):
        os.set_inheritable(end, True)
    command = [browser(), *QUIET, *options, f"--user-data-dir={folder / 'profile'}"]
    script = f'exec 3<&{to_write[0]} 4>&{to_read[1]}; exec "$@"'
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", script, "bash", *command, "--remote-debugging-pipe",
        pass_fds=(to_read[1], to_write[0]),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    os.close(to_read[1])
    os.close(to_write[0])
    reader = asyncio.StreamReader(limit=1 << 27)
    loop = asyncio.get_running_loop()
    pipe = os.fdopen(to_read[0], "rb")
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    page = Page(reader, to_write[1])
    reading = asyncio.create_task(page.read())
    try:
        await page.begin()
        yield page
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        reading.cancel()
        transport.close()
        os.close(to_write[1])
