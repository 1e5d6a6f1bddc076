"""``.ci/setup``, which each target of make runs first."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_venv_is_kept_in_a_folder_with_blanks(tmp_path: Path) -> None:
    """A venv that is up to date stays as it is, whatever characters its path has."""
    clone = tmp_path / "héddle src"
    files = ["requirements.lock", "pyproject.toml", ".ci/setup"]
    parts = ["proto", "controller", "agents", "emulator", "deploy/kubernetes"]
    files += [f"{part}/pyproject.toml" for part in parts]
    for file in files:
        (clone / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, clone / file)
    subprocess.run([sys.executable, "-m", "venv", clone / ".venv"], check=True)
    with (clone / ".venv" / "heddle-setup.sha256").open("wb") as stamp:
        subprocess.run(["sha256sum", *files], stdout=stamp, cwd=clone, check=True)
    (clone / ".venv" / "mine").touch()
    done = subprocess.run(
        ["bash", ".ci/setup"], cwd=clone, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert (clone / ".venv" / "mine").exists()
