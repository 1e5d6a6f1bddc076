from __future__ import annotations

import json
import re
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from heddle.text import split_address
from heddle_controller.settings import Settings, load_settings
from heddle_controller.store.redis.address import parse_address
from tests.support.needs import missing
from tests.unit.deploy.containerfile import read

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
BASE, TLS = "compose.yaml", "compose.tls.yaml"
CONTROLLERS = ("controller-0", "controller-1")
DURATION = re.compile(r"\d+(ms|s|m|h)")
VARIABLE = re.compile(r"\$\{(\w+)(:-([^}]*))?\}")


def load(file: str, **variables: str) -> dict[str, Any]:
    """Load a compose file with its variables filled in.

    Each variable needs a default in the file.
    """
    text = (DEPLOY / file).read_text(encoding="utf-8")
    plain = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    assert all(match[2] for match in VARIABLE.finditer(plain)), "a variable without a default"
    filled = VARIABLE.sub(lambda match: variables.get(match[1], match[3]), plain)
    found: dict[str, Any] = yaml.safe_load(filled)
    return found


def service(name: str, *files: str) -> dict[str, Any]:
    """Return a controller's service. Later files override earlier ones as in compose."""
    merged: dict[str, Any] = {"environment": {}}
    for file in files:
        part = load(file)["services"][name]
        environment = merged["environment"] | part["environment"]
        merged |= part | {"environment": environment}
    return merged


@pytest.fixture(scope="module")
def specification() -> jsonschema.Draft202012Validator:
    """Return the schema of the compose specification, from the check-jsonschema package."""
    try:
        carried = files("check-jsonschema") or []
    except PackageNotFoundError:
        missing("check-jsonschema: .ci/setup test")
    (schema,) = [each for each in carried if each.name == "compose-spec.json"]
    return jsonschema.Draft202012Validator(json.loads(schema.read_text()))


@pytest.mark.parametrize("file", [BASE, TLS])
def test_the_compose_specification_takes_the_file(
    file: str, specification: jsonschema.Draft202012Validator
) -> None:
    """No key is misspelt or from the old format, and values have the right types."""
    content = load(file)
    assert [error.message for error in specification.iter_errors(content)] == []
    wrong = content["services"] | {"controller-0": {"enviroment": {}}}
    assert list(specification.iter_errors(content | {"services": wrong}))


def test_what_a_service_refers_to_is_declared_or_there() -> None:
    """Named volumes are declared and all of them are used. Mounted and built files exist."""
    content = load(BASE)
    named = set()
    for each in content["services"].values():
        for volume in each.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).is_dir()
            else:
                named.add(source)
        if build := each.get("build"):
            assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
        assert each.get("depends_on", {}).keys() <= content["services"].keys()
    assert named == content["volumes"].keys()


def test_what_is_waited_for_has_a_health_check() -> None:
    """Controllers wait until Redis is healthy. Their own health check is in the image."""
    services = load(BASE)["services"]
    for name in CONTROLLERS:
        assert services[name]["depends_on"] == {"redis": {"condition": "service_healthy"}}
        assert "healthcheck" not in services[name]
    assert "healthcheck" in services["redis"]
    stage = read("controller")[1][-1]
    assert stage.one("HEALTHCHECK").exec_form()


def test_durations_are_durations() -> None:
    """Times are numbers with a unit. The grace period is at least twice the drain."""
    content = load(BASE)["services"]
    for name in ("prometheus", "redis"):
        check = content[name]["healthcheck"]
        for key in ("interval", "timeout", "start_period"):
            assert DURATION.fullmatch(check[key])
    for name in CONTROLLERS:
        grace = content[name]["stop_grace_period"]
        assert DURATION.fullmatch(grace)
        assert int(grace.removesuffix("s")) >= 2 * Settings.model_fields["drain_seconds"].default


def test_nothing_is_published_beyond_loopback_unless_asked_for() -> None:
    """By default only this machine has access. HEDDLE_PUBLISH opens the APIs and nothing else."""
    for each in load(BASE)["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in each.get("ports", []))
    opened = [
        port
        for each in load(BASE, HEDDLE_PUBLISH="10.0.0.5")["services"].values()
        for port in each.get("ports", [])
        if not port.startswith("127.0.0.1:")
    ]
    assert opened == ["10.0.0.5:7400:7400", "10.0.0.5:7500:7400"]


@pytest.mark.parametrize("name", CONTROLLERS)
def test_published_ports_are_those_that_are_served(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container's ports are those that the controller listens on with these settings."""
    found = service(name, BASE)
    settings = settings_of(found, monkeypatch)
    inner = sorted(int(port.split(":")[-1]) for port in found["ports"])
    assert inner == sorted([split_address(settings.listen)[1], settings.metrics_port])
    exposed = [port for each in read("controller")[1][-1].all("EXPOSE") for port in each.words()]
    assert [str(port) for port in inner] == sorted(exposed)


def settings_of(found: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return the settings of a controller that starts with the service's variables."""
    for name, value in found["environment"].items():
        monkeypatch.setenv(name, str(value))
    return load_settings()


@pytest.mark.parametrize("name", CONTROLLERS)
def test_plain_text_is_said_in_so_many_words(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one file there is no TLS, and HEDDLE_INSECURE says so."""
    settings = settings_of(service(name, BASE), monkeypatch)
    assert settings.insecure
    assert settings.tls_cert is None


@pytest.mark.parametrize("name", CONTROLLERS)
def test_the_controllers_share_a_store_that_keeps_what_it_acknowledged(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both controllers use the Redis, which writes everything to disk in a volume.

    Each has a name.
    """
    settings = settings_of(service(name, BASE), monkeypatch)
    assert parse_address(settings.store).hosts == (("redis", 6379),)
    assert settings.controller_id == name
    redis = load(BASE)["services"]["redis"]
    assert redis["command"] == ["redis-server", "--appendonly", "yes", "--appendfsync", "always"]
    assert redis["volumes"] == ["redis-data:/data"]
    assert "ports" not in redis


@pytest.mark.parametrize("name", CONTROLLERS)
def test_tls_takes_insecure_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the second file there is TLS with client certificates. Each file is a mounted secret."""
    found = service(name, BASE, TLS)
    settings = settings_of(found, monkeypatch)
    assert not settings.insecure
    named = {settings.tls_cert, settings.tls_key, settings.tls_client_ca}
    assert named == {Path("/run/secrets") / name for name in found["secrets"]}
    assert load(TLS)["secrets"].keys() == set(found["secrets"])


def test_the_services_may_do_little() -> None:
    """Services have a read-only root, no capability, and no way to gain one."""
    for each in load(BASE)["services"].values():
        assert each["read_only"] is True
        assert each["cap_drop"] == ["ALL"]
        assert each["security_opt"] == ["no-new-privileges:true"]
        assert each["restart"] == "unless-stopped"


def test_prometheus_reads_the_configuration_that_is_mounted() -> None:
    """--config.file is in the mounted folder, and the configuration names both controllers."""
    services = load(BASE)["services"]
    (option,) = [w for w in services["prometheus"]["command"] if w.startswith("--config.file=")]
    source, target, mode = services["prometheus"]["volumes"][0].split(":")
    path = Path(option.partition("=")[2])
    config = yaml.safe_load((DEPLOY / source / path.relative_to(target)).read_text())
    assert mode == "ro"
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    targets = jobs["heddle-controller"]["static_configs"][0]["targets"]
    for name, target in zip(CONTROLLERS, targets, strict=True):
        assert target.removesuffix(":7401") in services[name]["networks"]["default"]["aliases"]
