from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from heddle.text import split_address
from heddle_controller.settings import Settings, load_settings
from tests.unit.deploy.containerfile import read

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
BASE, TLS = "compose.yaml", "compose.tls.yaml"
TOP = {"name", "services", "volumes", "secrets"}
OF_A_SERVICE = {
    "build", "cap_drop", "command", "depends_on", "environment", "healthcheck", "image", "init",
    "ports", "read_only", "restart", "secrets", "security_opt", "stop_grace_period", "tmpfs",
    "ulimits", "volumes",
}  # fmt: skip
OF_A_HEALTH_CHECK = {"test", "interval", "timeout", "retries", "start_period"}
DURATION = re.compile(r"\d+(ms|s|m|h)")
VARIABLE = re.compile(r"\$\{(\w+)(:-([^}]*))?\}")


def load(file: str, **variables: str) -> dict[str, Any]:
    """A compose file, variables filled in; each needs a default in the file."""
    text = (DEPLOY / file).read_text(encoding="utf-8")
    plain = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    assert all(match[2] for match in VARIABLE.finditer(plain)), "a variable without a default"
    filled = VARIABLE.sub(lambda match: variables.get(match[1], match[3]), plain)
    found: dict[str, Any] = yaml.safe_load(filled)
    return found


def controller(*files: str) -> dict[str, Any]:
    """The controller's service, later files over earlier ones as compose lays them."""
    merged: dict[str, Any] = {"environment": {}}
    for file in files:
        part = load(file)["services"]["controller"]
        environment = merged["environment"] | part["environment"]
        merged |= part | {"environment": environment}
    return merged


@pytest.mark.parametrize("file", [BASE, TLS])
def test_only_keys_of_the_compose_specification(file: str) -> None:
    """No key is misspelt, and none of the old format's is there."""
    content = load(file)
    assert content.keys() <= TOP
    for service in content["services"].values():
        assert service.keys() <= OF_A_SERVICE
        assert service.get("healthcheck", {}).keys() <= OF_A_HEALTH_CHECK


def test_what_a_service_refers_to_is_declared_or_there() -> None:
    """Named volumes are declared, and all of these used; mounted and built files exist."""
    content = load(BASE)
    named = set()
    for service in content["services"].values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).is_dir()
            else:
                named.add(source)
        if build := service.get("build"):
            assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    assert named == content["volumes"].keys()


def test_what_is_waited_for_has_a_health_check() -> None:
    """Prometheus waits for the controller to be healthy, which the image's own check tells."""
    content = load(BASE)
    assert content["services"]["prometheus"]["depends_on"] == {
        "controller": {"condition": "service_healthy"}
    }
    assert "healthcheck" not in content["services"]["controller"]
    stage = read("controller")[1][-1]
    assert stage.one("HEALTHCHECK").exec_form()


def test_durations_are_durations() -> None:
    """Times are numbers with a unit; the drain ends before the grace does."""
    content = load(BASE)["services"]
    check = content["prometheus"]["healthcheck"]
    for key in ("interval", "timeout", "start_period"):
        assert DURATION.fullmatch(check[key])
    grace = content["controller"]["stop_grace_period"]
    assert DURATION.fullmatch(grace)
    assert int(grace.removesuffix("s")) >= 2 * Settings.model_fields["drain_seconds"].default


def test_nothing_is_published_beyond_loopback_unless_asked_for() -> None:
    """As it is, only this machine gets in; HEDDLE_PUBLISH opens the API and nothing else."""
    for service in load(BASE)["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    opened = [
        port
        for service in load(BASE, HEDDLE_PUBLISH="10.0.0.5")["services"].values()
        for port in service["ports"]
        if not port.startswith("127.0.0.1:")
    ]
    assert opened == ["10.0.0.5:7400:7400"]


def test_published_ports_are_those_that_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """The container's ports are where these settings make the controller listen."""
    service = controller(BASE)
    settings = settings_of(service, monkeypatch)
    inner = sorted(int(port.split(":")[-1]) for port in service["ports"])
    assert inner == sorted([split_address(settings.listen)[1], settings.metrics_port])
    exposed = [port for each in read("controller")[1][-1].all("EXPOSE") for port in each.words()]
    assert [str(port) for port in inner] == sorted(exposed)


def settings_of(service: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings of a controller that is started with the service's variables."""
    for name, value in service["environment"].items():
        monkeypatch.setenv(name, str(value))
    return load_settings()


def test_plain_text_is_said_in_so_many_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """One file: no TLS, and HEDDLE_INSECURE says so."""
    settings = settings_of(controller(BASE), monkeypatch)
    assert settings.insecure
    assert settings.tls_cert is None


def test_tls_takes_insecure_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the second file: TLS with client certificates, each file a secret that is mounted."""
    service = controller(BASE, TLS)
    settings = settings_of(service, monkeypatch)
    assert not settings.insecure
    named = {settings.tls_cert, settings.tls_key, settings.tls_client_ca}
    assert named == {Path("/run/secrets") / name for name in service["secrets"]}
    assert load(TLS)["secrets"].keys() == set(service["secrets"])


def test_the_services_may_do_little() -> None:
    """Read-only root, no capability, no way to gain one."""
    for service in load(BASE)["services"].values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["restart"] == "unless-stopped"


def test_prometheus_reads_the_configuration_that_is_mounted() -> None:
    """Its --config.file is a file of the folder that it is given."""
    service = load(BASE)["services"]["prometheus"]
    (option,) = [word for word in service["command"] if word.startswith("--config.file=")]
    source, target, mode = service["volumes"][0].split(":")
    path = Path(option.partition("=")[2])
    assert (DEPLOY / source / path.relative_to(target)).is_file()
    assert mode == "ro"
