from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from heddle_agent.settings import HostSettings, load_host_settings
from heddle_agent.settings import Settings as AgentSettings
from heddle_agent.settings import load_settings as load_agent
from heddle_controller.settings import Settings as ControllerSettings
from heddle_controller.settings import load_settings as load_controller

SYSTEMD = Path(__file__).resolve().parents[3] / "deploy" / "systemd"
LINE = re.compile(r"^(#?)([A-Z][A-Z0-9_]*)=(.*)$")
FILES: list[tuple[str, type[BaseSettings], set[str]]] = [
    ("controller.env", ControllerSettings, {"HEDDLE_STORE"}),
    ("agent.env", AgentSettings, {"HEDDLE_AGENT_STATE_FILE"}),
    ("host.env", HostSettings, {"HEDDLE_HOST_DIRECTORY"}),
]


def lines(file: str) -> list[tuple[bool, str, str]]:
    """Return every setting: whether it is commented out, its name and its value."""
    found = [LINE.match(line) for line in (SYSTEMD / file).read_text(encoding="utf-8").splitlines()]
    return [
        (match[1] == "#", match[2], " ".join(shlex.split(match[3]))) for match in found if match
    ]


@pytest.mark.parametrize(("file", "settings", "_set_by_unit"), FILES)
def test_every_setting_is_there_once(
    file: str, settings: type[BaseSettings], _set_by_unit: set[str]
) -> None:
    """The file shows every setting, and nothing else."""
    prefix = settings.model_config["env_prefix"]
    names = [name for _, name, _ in lines(file)]
    assert sorted(names) == sorted(f"{prefix}{field.upper()}" for field in settings.model_fields)


@pytest.mark.parametrize(("file", "settings", "set_by_unit"), FILES)
def test_what_is_commented_out_is_the_default(
    file: str, settings: type[BaseSettings], set_by_unit: set[str]
) -> None:
    """A commented line has the default. An empty value means that there is no default."""
    prefix = settings.model_config["env_prefix"]
    for commented, name, value in lines(file):
        if not commented or name in set_by_unit:
            continue
        field = settings.model_fields[name.removeprefix(prefix).lower()]
        if value == "":
            assert field.default in (None, (), PydanticUndefined), name
            continue
        assert plain(value, field.default) == field.default, name


def plain(text: str, like: Any) -> Any:
    """Return the text as a value of the same type as ``like``."""
    if isinstance(like, bool):
        return {"true": True, "false": False}[text]
    return type(like)(text)


def test_the_controller_starts_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every line that has a value uncommented, only the store differs from the defaults."""
    for _, name, value in lines("controller.env"):
        if value:
            monkeypatch.setenv(name, value)
    settings = load_controller(controller_id="c1")
    expected = ControllerSettings.model_construct(
        controller_id="c1", store="sqlite:////var/lib/heddle-controller/heddle.sqlite3"
    )
    assert settings == expected


def test_the_agent_starts_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The unchanged file gives an agent on loopback with the links that it lists."""
    for commented, name, value in lines("agent.env"):
        if not commented:
            monkeypatch.setenv(name, value)
    settings = load_agent()
    assert settings.fabric == "fabrics/f1"
    assert settings.controller == ("127.0.0.1:7400",)
    assert settings.link == ("spine0", "spine1", "nic0", "nic1")
    assert not settings.insecure


def test_the_host_agent_starts_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The unchanged file gives an agent on loopback that writes where its unit lets it."""
    for commented, name, value in lines("host.env"):
        if not commented:
            monkeypatch.setenv(name, value)
    settings = load_host_settings()
    assert (settings.fabric, settings.controller) == ("fabrics/f1", ("127.0.0.1:7400",))
    assert settings.directory == Path("/run/heddle/ports")
    assert not settings.insecure
