from __future__ import annotations

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from heddle_agent.table import NO_FENCE, Fence, FenceFile


def test_the_fence_comes_back_after_a_restart(tmp_path: Path) -> None:
    """The next agent loads what one agent remembered, and no other file is left behind."""
    path = tmp_path / "agent.json"
    first = FenceFile(path, "fabrics/f1", "leaf0")
    assert first.load() == NO_FENCE
    for fence in [Fence(1, 1), Fence(1, 2), Fence(7, 3)]:
        first.remember(fence)
    assert FenceFile(path, "fabrics/f1", "leaf0").load() == (7, 3)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '"x"',
        '{"fabric": "fabrics/f1", "switch": "leaf0", "highest_epoch": "9", "generation": 1}',
        '{"fabric": "fabrics/f1", "switch": "leaf0", "highest_epoch": -1, "generation": 1}',
        '{"fabric": "fabrics/f1", "switch": "leaf0", "highest_epoch": true, "generation": 1}',
        '{"fabric": "f", "switch": "x", "highest_epoch": 1, "generation": 20000000000000000000}',
    ],
)
def test_a_damaged_file_is_refused_with_its_cure(tmp_path: Path, text: str) -> None:
    """The error names the file and says what to do, and the file is not overwritten."""
    path = tmp_path / "agent.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"agent\.json is damaged .*: remove it"):
        FenceFile(path, "fabrics/f1", "leaf0").load()
    assert path.read_text(encoding="utf-8") == text, "nothing is overwritten"


def test_a_file_that_is_not_text_is_damaged(tmp_path: Path) -> None:
    """The error says what to do, as for any other damage."""
    path = tmp_path / "agent.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"agent\.json is damaged .*: remove it"):
        FenceFile(path, "fabrics/f1", "leaf0").load()


def test_the_file_of_another_switch_is_refused(tmp_path: Path) -> None:
    """Two agents that share a file would fence each other."""
    path = tmp_path / "agent.json"
    FenceFile(path, "fabrics/f1", "leaf0").load()
    with pytest.raises(ValueError, match="is of leaf0 in fabrics/f1, not of leaf1 in fabrics/f1"):
        FenceFile(path, "fabrics/f1", "leaf1").load()


def test_a_folder_that_is_not_there_is_told_at_the_start(tmp_path: Path) -> None:
    """The error comes at the start. With the first push it would be too late."""
    with pytest.raises(ValueError, match="cannot be written: No such file or directory"):
        FenceFile(tmp_path / "none" / "agent.json", "fabrics/f1", "leaf0").load()


def test_a_disk_that_fails_later_does_not_stop_forwarding(tmp_path: Path) -> None:
    """When the fence cannot be written, an error is logged and nothing is raised."""
    folder = tmp_path / "state"
    folder.mkdir()
    path = folder / "agent.json"
    file = FenceFile(path, "fabrics/f1", "leaf0")
    file.load()
    path.unlink()
    folder.rmdir()
    with capture_logs() as logs:
        file.remember(Fence(2, 1))
    assert [(entry["log_level"], entry["path"]) for entry in logs] == [("error", str(path))]


def test_the_file_is_plain_json(tmp_path: Path) -> None:
    """The file is JSON that a person can read."""
    path = tmp_path / "agent.json"
    file = FenceFile(path, "fabrics/f1", "leaf0")
    file.remember(Fence(3, 4))
    assert json.loads(path.read_text(encoding="utf-8")) == {
        "fabric": "fabrics/f1",
        "switch": "leaf0",
        "highest_epoch": 3,
        "generation": 4,
    }
