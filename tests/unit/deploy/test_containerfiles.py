from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest

from tests.unit.deploy.containerfile import IMAGES, NAMES, ROOT, Stage, read

FOLDERS = {
    "agent": "agents",
    "controller": "controller",
    "emulator": "emulator",
    "kubernetes": "deploy/kubernetes",
    "sonic": "agents",
}
PORTS = {
    "agent": ["7402"],
    "controller": ["7400", "7401"],
    "emulator": [],
    "kubernetes": ["8080"],
    "sonic": ["7402"],
}
UNPRIVILEGED = [name for name in NAMES if name != "sonic"]  # SONiC's Redis belongs to root


def project(name: str) -> dict[str, Any]:
    """Return the [project] table of a distribution."""
    text = (ROOT / FOLDERS[name] / "pyproject.toml").read_text(encoding="utf-8")
    table: dict[str, Any] = tomllib.loads(text)["project"]
    return table


def final(name: str) -> Stage:
    """Return the stage that becomes the image."""
    return read(name)[1][-1]


@pytest.mark.parametrize("name", NAMES)
def test_both_stages_stand_on_one_base_that_a_builder_may_choose(name: str) -> None:
    """Both stages start from BASE_IMAGE, because an environment needs the Python that made it.

    Its default is a name without a registry's host.
    """
    before, stages = read(name)
    assert [each.pairs() for each in before] == [{"BASE_IMAGE": "python:3.11-slim"}]
    assert [(stage.base, stage.name) for stage in stages] == [
        ("${BASE_IMAGE}", "build"),
        ("${BASE_IMAGE}", ""),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_source_of_a_copy_is_there_and_reaches_the_builder(name: str) -> None:
    """COPY takes files that exist and that .dockerignore, which excludes the rest, lets through."""
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in ignore
    let_through = [ROOT / line[1:] for line in ignore if line.startswith("!")]
    assert all(path.exists() for path in let_through)
    for stage in read(name)[1]:
        for copy in stage.all("COPY"):
            *sources, _target = copy.words()
            if sources[0].startswith("--from="):
                assert sources == ["--from=build", "/opt/heddle"]
                continue
            for source in sources:
                path = (ROOT / source).resolve()
                assert path.exists(), f"{name}: COPY {source}: no such file"
                assert path.is_dir() == source.endswith("/") or source == "LICENSE"
                assert any(path.is_relative_to(parent) for parent in let_through), source


@pytest.mark.parametrize("name", UNPRIVILEGED)
def test_the_image_runs_its_own_program_as_nobody_special(name: str) -> None:
    """The user is numeric, not root, and set after the last RUN.

    The program is the distribution's.
    """
    stage = final(name)
    order = [each.name for each in stage.instructions]
    assert order.index("USER") > max(i for i, word in enumerate(order) if word == "RUN")
    user, group = stage.one("USER").text.split(":")
    assert int(user) == int(group) >= 10000
    assert f"--uid {user} " in stage.one("RUN").text
    (program,) = stage.one("ENTRYPOINT").exec_form()
    folder, _, script = program.rpartition("/")
    assert folder == "/opt/heddle/bin"
    assert script in project(name)["scripts"]
    assert stage.one("CMD").exec_form()


@pytest.mark.parametrize("name", NAMES)
def test_the_image_names_the_ports_that_it_serves(name: str) -> None:
    """The image exposes exactly the ports that its program listens on."""
    exposed = [port for each in final(name).all("EXPOSE") for port in each.words()]
    assert exposed == PORTS[name]


@pytest.mark.parametrize("name", NAMES)
def test_all_that_is_written_goes_to_the_volume(name: str) -> None:
    """The root may be read-only. There is one volume, the user's own, and files are named in it."""
    stage = final(name)
    volume = stage.one("VOLUME").text
    assert stage.one("WORKDIR").text == volume
    owner = "-o heddle -g heddle " if name in UNPRIVILEGED else ""
    assert f"install -d {owner}-m 0700 {volume}" in stage.one("RUN").text
    variables = stage.one("ENV").pairs()
    assert variables["PYTHONDONTWRITEBYTECODE"] == "1"
    written = {
        key: value for key, value in variables.items() if key.endswith(("_STORE", "_STATE_FILE"))
    }
    assert len(written) == (0 if name in {"emulator", "kubernetes"} else 1)
    assert all(value.removeprefix("sqlite:///").startswith(volume) for value in written.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_image_says_what_it_is(name: str) -> None:
    """OCI labels have the distribution's name, description, licence and version."""
    stage, about = final(name), project(name)
    labels = stage.all("LABEL")[0].pairs()
    prefix = "org.opencontainers.image."
    assert all(key.startswith(prefix) for key in labels)
    assert labels[f"{prefix}title"] == about["name"]
    assert labels[f"{prefix}description"] == about["description"]
    assert labels[f"{prefix}licenses"] == about["license"]
    assert labels[f"{prefix}version"] == "${VERSION}"
    assert {"VERSION": about["version"]} in [
        each.pairs() for each in stage.all("ARG") if "=" in each.text
    ]


@pytest.mark.parametrize("name", ["agent", "controller", "sonic"])
def test_the_health_check_asks_in_time(name: str) -> None:
    """The health check runs a script in the image, which gives up before the builder's limit."""
    stage = final(name)
    check = stage.one("HEALTHCHECK")
    python, script = check.exec_form()
    assert python == "/opt/heddle/bin/python"
    copied = {copy.words()[-1]: copy.words()[0] for copy in stage.all("COPY")}
    source = (ROOT / copied[script]).read_text(encoding="utf-8")
    gives_up = re.search(r"^LIMIT = ([\d.]+)", source, re.MULTILINE)
    limit = re.search(r"--timeout=(\d+)s", check.text)
    assert gives_up
    assert limit
    assert float(gives_up[1]) < float(limit[1])


def test_the_emulator_has_no_health_to_ask_for() -> None:
    """The emulator runs and ends. HEALTHCHECK NONE also removes a check that the base may have."""
    assert final("emulator").one("HEALTHCHECK").text == "NONE"


@pytest.mark.parametrize("name", NAMES)
def test_packages_come_by_the_lock_and_no_host_is_named(name: str) -> None:
    """Only deploy/install installs packages, and only those of the image.

    No package index is named.
    """
    _, (build, last) = read(name)
    assert [run.command() for run in build.all("RUN")] == [
        f"STEP=packages deploy/install {name} /opt/heddle",
        f"STEP=heddle deploy/install {name} /opt/heddle",
    ]
    assert not re.search(r"\b(pip|apt|apt-get|curl|wget)\b", last.one("RUN").text)
    text = (IMAGES / f"{name}.Containerfile").read_text(encoding="utf-8")
    plain = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    assert not re.search(r"://(?!/)|index-url|\.(io|org|com|net)/", plain)
