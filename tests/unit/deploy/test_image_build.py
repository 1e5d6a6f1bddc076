from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.unit.deploy.containerfile import ROOT, Stage, read

READY = re.compile(rb"listening on (?P<api>\S+:\d+)")
SKIP = shutil.ignore_patterns("__pycache__", "*.sqlite3*")
# A build sees only these variables of this environment, to reach a package index.
KEPT = ("HOME", "LANG", "PATH", "PIP_", "SSL_", "HTTP_", "HTTPS_", "http_", "https_", "no_proxy")


def environment() -> dict[str, str]:
    """Return the variables for a build, as few as a builder gives it."""
    kept = {key: value for key, value in os.environ.items() if key.startswith(KEPT)}
    # Compiling would take longer than it saves: the environment runs twice and is then removed.
    # pip's variable says whether to compile, despite its name.
    return kept | {"PIP_NO_COMPILE": "0", "UV_COMPILE_BYTECODE": "0"}


def carry_out(stage: Stage, root: Path) -> None:
    """Carry out WORKDIR, ENV, COPY and RUN as a builder does, with paths moved below a folder."""
    variables, work = environment(), root
    for each in stage.instructions:
        if each.name == "WORKDIR":
            work = root / each.text.lstrip("/")
            work.mkdir(parents=True, exist_ok=True)
        elif each.name == "ENV":
            variables |= {
                key: f"{root}{value}" if value.startswith("/") else value
                for key, value in each.pairs().items()
            }
        elif each.name == "COPY":
            *sources, target = each.words()
            for source in sources:
                copy(ROOT / source, work / target)
        elif each.name == "RUN":
            command = each.command().replace(" /opt/", f" {root}/opt/")
            done = subprocess.run(
                ["/bin/sh", "-c", command],
                cwd=work,
                env=variables | {"PYTHON": sys.executable},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"RUN {command}\n{done.stdout}{done.stderr}"


def copy(source: Path, target: Path) -> None:
    """Copy a folder's content into the target, or a file into the target folder."""
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=SKIP)
    else:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


@pytest.fixture
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the environment that the build stage of the controller's image makes.

    One test has all that is asked of it: if several shared it, each worker would make its own.
    """
    root = tmp_path_factory.mktemp("image")
    _, (build, _) = read("controller")
    carry_out(build, root)
    yield root / "opt" / "heddle"
    shutil.rmtree(root)  # half a gigabyte, which pytest would keep for three runs


@contextlib.asynccontextmanager
async def controller(built: Path, folder: Path) -> AsyncIterator[str]:
    """Run the built controller as the image starts it, and yield the address of its API."""
    stage = read("controller")[1][-1]
    program, *arguments = stage.one("ENTRYPOINT").exec_form() + stage.one("CMD").exec_form()
    variables = {
        "HEDDLE_STORE": f"sqlite:///{folder}/heddle.sqlite3",
        "HEDDLE_LISTEN": "127.0.0.1:0",
        "HEDDLE_METRICS_PORT": "0",
    }
    process = await asyncio.create_subprocess_exec(
        *(program.replace("/opt/heddle", str(built)), *arguments),
        env=variables,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        said = b""
        while not (found := READY.search(said)):
            line = await process.stdout.readline()
            assert line, f"the controller ended: {said.decode()}"
            said += line
        yield found["api"].decode()
        process.terminate()
        rest, _ = await process.communicate()
        assert process.returncode == 0, rest.decode()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_the_build_stage_makes_a_controller_that_serves(built: Path, tmp_path: Path) -> None:
    """Carried out step by step without an engine, the stage gives a controller that serves.

    The image's own health check, run by the built Python, succeeds. The controller stops with
    status 0. The environment has packages in versions of the lock, the two of Heddle, and no pip.
    `heddle` is in it too, with all that it imports.
    """
    async with controller(built, tmp_path) as api:
        check = await asyncio.create_subprocess_exec(
            *(built / "bin" / "python", ROOT / "deploy" / "images" / "controller_health.py"),
            env={"HEDDLE_LISTEN": api},
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await check.communicate()
        assert (check.returncode, said) == (0, b"")
    await asyncio.to_thread(holds_the_lock_and_nothing_else, built)
    await asyncio.to_thread(has_the_operators_command, built)


def holds_the_lock_and_nothing_else(built: Path) -> None:
    """Check that an environment has what the lock says, our two distributions, and no pip."""
    script = (
        "from importlib.metadata import distributions as d;"
        "print(*sorted(f'{each.name}=={each.version}'.lower() for each in d()))"
    )
    python = built / "bin" / "python"
    shown = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True)
    here = {each.replace("_", "-") for each in shown.stdout.split()}
    house = {each for each in here if each.startswith("heddle-")}
    assert {each.partition("==")[0] for each in house} == {"heddle-controller", "heddle-proto"}
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert here - house <= set(re.findall(r"^[\w.-]+==[^\s;\\]+", lock, flags=re.MULTILINE))
    assert not any(each.startswith(("pip==", "setuptools==", "pytest==", "uv==")) for each in here)


def has_the_operators_command(built: Path) -> None:
    """Check that `heddle` is in an environment, with all that it imports."""
    done = subprocess.run([built / "bin" / "heddle", "--help"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
