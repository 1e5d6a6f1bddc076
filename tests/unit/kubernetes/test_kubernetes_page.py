"""The manifests and pages use names that the program has."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import yaml

from heddle.shape import parse_shape
from heddle_kubernetes.cli import main
from heddle_kubernetes.cluster import Cluster, Mirror
from heddle_kubernetes.health import Health
from heddle_kubernetes.objects import CONTROLLER, NODE, SHAPE, TIER

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "kubernetes"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
DOCUMENTS = {
    one["kind"]: one
    for one in yaml.safe_load_all((FOLDER / "heddle-kubernetes.yaml").read_text(encoding="utf-8"))
}


def options() -> dict[str, str]:
    """Return the options of ``serve`` by the names of their variables."""
    found = {}
    for parameter in main.commands["serve"].params:
        assert isinstance(parameter.envvar, str), parameter.name
        found[parameter.envvar] = parameter.opts[0]
    return found


def test_the_manifest_says_what_the_program_takes() -> None:
    """The manifest has the program's command, variables, probes and check controller."""
    (container,) = DOCUMENTS["Deployment"]["spec"]["template"]["spec"]["containers"]
    (word,) = container["args"]
    assert word in main.commands
    variables = {one["name"]: one["value"] for one in container["env"]}
    assert variables.keys() <= options().keys()
    (port,) = container["ports"]
    assert variables["HEDDLE_KUBERNETES_HEALTH"].rpartition(":")[2] == str(port["containerPort"])
    assert DOCUMENTS["AdmissionCheck"]["spec"]["controllerName"] == CONTROLLER
    places = {DOCUMENTS[kind]["metadata"]["namespace"] for kind in ("ServiceAccount", "Deployment")}
    assert places == {DOCUMENTS["Namespace"]["metadata"]["name"]}


def test_the_pages_name_what_there_is() -> None:
    """The pages name options that exist, and show shapes that can be read."""
    words = set(options().values()) | {"--no-tiers"}
    assert set(re.findall(r"`(--[a-z-]+)`", PAGE)) <= words
    front = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(rf"{SHAPE}[:=] ?'?([^'\n|]+)'?", front + PAGE)
    assert len(shown) == 2
    for shape in shown:
        assert parse_shape(shape).spec.gpus_per_host == 8
    (block,) = re.findall(r"```yaml\n(apiVersion: batch.*?)```", PAGE, re.DOTALL)
    wanted = yaml.safe_load(block)["spec"]["template"]["metadata"]["annotations"]
    assert set(wanted.values()) == {f"{TIER}0"}


async def test_probes_are_answered() -> None:
    """The program is alive from the start, and ready once the cluster was read."""
    health = Health()
    mirror = Mirror(Cluster(None), NODE, lambda *_: None)  # type: ignore[arg-type]
    health.watch(mirror)

    async def asked(path: str, port: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()
        return int(line.split()[1])

    server = await asyncio.start_server(health.answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert [await asked("/live", port), await asked("/ready", port)] == [200, 503]
    mirror.synced.set()
    assert await asked("/ready", port) == 200
    server.close()
    await server.wait_closed()
