"""A real Prometheus that scrapes twice a second, with its own folder and port."""

from __future__ import annotations

import asyncio
import json
import shutil
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from tests.support.needs import missing
from tests.support.ports import free_port

Sample: TypeAlias = dict[str, Any]
INTERVAL = "500ms"


def program(name: str) -> str:
    """Return the path of ``prometheus`` or ``promtool``."""
    found = shutil.which(name)
    if found is None:
        missing(f"{name}: apt-get install prometheus")
    return found


class QueryError(AssertionError):
    """Prometheus did not accept an expression."""


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    async def ask(self, path: str, **words: str) -> Any:
        """Return what the API answers; raise QueryError if it refuses."""
        return await asyncio.to_thread(self._ask, f"{self._url}/api/v1/{path}?{urlencode(words)}")

    def _ask(self, url: str) -> Any:
        try:
            with urlopen(url) as answer:
                return json.load(answer)["data"]
        except HTTPError as error:
            raise QueryError(f"{url}: {error.read().decode()}") from None

    async def query(self, expression: str) -> list[Sample]:
        """Return the current samples of an expression."""
        answer = await self.ask("query", query=expression)
        assert answer["resultType"] == "vector", (expression, answer)
        return list(answer["result"])

    def ready(self) -> bool:
        """Return whether it answers."""
        try:
            with urlopen(f"{self._url}/-/ready") as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


@asynccontextmanager
async def scraping(
    folder: Path, targets: Mapping[str, Sequence[str]], *rules: Path
) -> AsyncIterator[Prometheus]:
    """Run a Prometheus that scrapes addresses, by job; kill it at the end."""
    port = free_port()
    jobs = [
        {"job_name": job, "static_configs": [{"targets": list(addresses)}]}
        for job, addresses in targets.items()
    ]
    content = {
        "global": {"scrape_interval": INTERVAL, "evaluation_interval": INTERVAL},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": jobs,
    }
    content["global"] |= {"scrape_timeout": INTERVAL}  # type: ignore[operator] # it is a dict
    config, log = folder / "prometheus.yaml", folder / "prometheus.log"
    config.write_text(yaml.safe_dump(content), encoding="utf-8")
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            program("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdin=DEVNULL,
            stdout=errors,
            stderr=errors,
        )
    try:
        running = Prometheus(port)
        async with asyncio.timeout(240):
            while not await asyncio.to_thread(running.ready):
                assert process.returncode is None, log.read_text()
                await asyncio.sleep(0.05)
        yield running
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
