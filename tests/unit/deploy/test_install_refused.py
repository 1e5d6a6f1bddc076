from __future__ import annotations

import os
import subprocess
from pathlib import Path

INSTALL = Path(__file__).resolve().parents[3] / "deploy" / "install"


def install(*arguments: str | Path, **variables: str) -> tuple[int, str]:
    """Return the exit status and the output."""
    done = subprocess.run(
        [INSTALL, *arguments],
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_an_unknown_distribution_is_refused(tmp_path: Path) -> None:
    """One line says what can be installed, the status is 2, and nothing is created."""
    said = "install: say what to install: agent, sonic, controller, emulator or kubernetes\n"
    assert install("switch", tmp_path / "there") == (2, said)
    assert install() == (2, said)
    assert not (tmp_path / "there").exists()


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    """Only an empty folder or an environment is installed into, so that /opt is not mixed up."""
    (tmp_path / "mine").write_text("kept", encoding="utf-8")
    code, said = install("agent", tmp_path)
    assert (code, said.count("\n")) == (2, 1)
    assert f"{tmp_path} holds something else than a virtual environment" in said
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_python_that_will_not_do_is_named(tmp_path: Path) -> None:
    """A program that is not Python 3.11 with venv is refused before anything is created."""
    code, said = install("agent", tmp_path / "there", PYTHON="/bin/false")
    assert code == 2
    assert said.startswith("install: /bin/false is not Python 3.11 or newer with venv: on Debian")
    assert not (tmp_path / "there").exists()
