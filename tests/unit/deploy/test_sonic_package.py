from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from tests.unit.deploy.containerfile import ROOT, read

STAGE = read("sonic")[1][-1]
LABEL = "com.azure.sonic.manifest"
WORDS = [str]
VERSION = r"\d+\.\d+\.\d+"
SCHEMA: dict[str, Any] = {
    "version": str,
    "package": {
        "version": str,
        "name": str,
        "description": str,
        "base-os": dict,
        "depends": WORDS,
        "breaks": WORDS,
        "init-cfg": dict,
        "changelog": dict,
        "debug-dump": str,
    },
    "service": {
        "name": str,
        **dict.fromkeys(("requires", "requisite", "wanted-by", "after", "before"), WORDS),
        **dict.fromkeys(("dependent", "dependent-of"), WORDS),
        **dict.fromkeys(("post-start-action", "pre-shutdown-action", "type", "stop-time"), str),
        **dict.fromkeys(("asic-service", "host-service", "delayed", "check_up_status"), bool),
        "warm-shutdown": {"after": WORDS, "before": WORDS},
        "fast-shutdown": {"after": WORDS, "before": WORDS},
        "syslog": {"support-rate-limit": bool},
    },
    "container": {
        "privileged": bool,
        "volumes": WORDS,
        "mounts": [{"source": str, "target": str, "type": str}],
        "environment": dict,
        "tmpfs": WORDS,
    },
    "processes": [{"name": str, "reconciles": bool}],
    "cli": {"mandatory": bool, "show": WORDS, "config": WORDS, "clear": WORDS},
}
"""Fields and types of a SONiC package's manifest, by the design of application extensions."""
NEEDED = {("package", "version"), ("package", "name"), ("service", "name")}
GIVEN = {"/var/run/redis", "/var/warmboot", "/etc/fips/fips_enable", "/var/log/supervisor"}
"""Folders that SONiC mounts into every container itself. Mounting them again is an error."""


def manifest() -> dict[str, Any]:
    """Return the manifest in the image's label."""
    (text,) = [label.pairs()[LABEL] for label in STAGE.all("LABEL") if LABEL in label.pairs()]
    told: dict[str, Any] = json.loads(text)
    return told


def faults(told: object, schema: Any, path: str = "") -> list[str]:
    """Return the places where something does not match the schema."""
    if isinstance(schema, dict):
        if not isinstance(told, dict):
            return [f"{path} is no object"]
        strange = [f"{path}/{name} is not known" for name in told.keys() - schema.keys()]
        known = told.keys() & schema.keys()
        return strange + [f for n in known for f in faults(told[n], schema[n], f"{path}/{n}")]
    if isinstance(schema, list):
        if not isinstance(told, list):
            return [f"{path} is no list"]
        return [f for at, one in enumerate(told) for f in faults(one, schema[0], f"{path}[{at}]")]
    return [] if type(told) is schema else [f"{path} is no {schema.__name__}"]


def test_the_manifest_is_one_by_sonics_schema() -> None:
    """Every field is known and has its type, and the required fields are there."""
    told = manifest()
    assert faults(told, SCHEMA) == []
    assert all(told[room][field] for room, field in NEEDED)
    assert faults({"service": {"name": 1, "after": "swss", "x": ""}}, SCHEMA) != []
    assert re.fullmatch(VERSION, told["version"])


def test_the_package_is_the_agent_of_this_version() -> None:
    """The package manager shows the version of the distribution."""
    text = (ROOT / "agents" / "pyproject.toml").read_text(encoding="utf-8")
    assert manifest()["package"]["version"] == tomllib.loads(text)["project"]["version"]


def test_the_container_gets_what_the_agent_reads_and_writes() -> None:
    """Settings of the switch are mounted read-only, and the agent's state outlives the container.

    SONiC itself mounts Redis.
    """
    container = manifest()["container"]
    assert not container["privileged"]
    targets = {volume.split(":")[1]: volume.split(":")[2] for volume in container["volumes"]}
    assert targets == {"/etc/heddle": "ro", STAGE.one("VOLUME").text: "rw"}
    assert not targets.keys() & GIVEN
    variables = STAGE.one("ENV").pairs()
    assert variables["HEDDLE_AGENT_FIB"] == "sonic"
    assert Path(variables["HEDDLE_AGENT_INTERFACES"]).parent == Path("/etc/heddle")
    assert "HEDDLE_AGENT_SONIC_REDIS" not in variables  # the default is where SONiC mounts it


def test_the_entry_point_reads_the_settings_of_the_switch(tmp_path: Path) -> None:
    """Settings in the file override those of the image, and the agent replaces the shell."""
    shell, dash_c, line = STAGE.one("ENTRYPOINT").exec_form()
    assert line.rpartition("; ")[2] == "exec /opt/heddle/bin/heddle-agent run"
    example = (ROOT / "deploy" / "systemd" / "agent.env").read_text(encoding="utf-8")
    (tmp_path / "agent.env").write_text(
        f"{example}\nunset HEDDLE_AGENT_LINK\nHEDDLE_AGENT_LOG_LEVEL=loud\n", encoding="utf-8"
    )
    line = line.replace("/etc/heddle", str(tmp_path))
    line = line.replace("/opt/heddle/bin", str(Path(sys.executable).parent))
    done = subprocess.run(
        [shell, dash_c, line],
        env=STAGE.one("ENV").pairs() | {"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    (said,) = done.stderr.splitlines()  # one line, so every required setting was read
    assert "--log-level (HEDDLE_AGENT_LOG_LEVEL)" in said
