"""The container that hands a folder of the node to a host's agent."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.kubectl import kubectl, render
from tests.support.needs import missing


def test_its_rights_are_enough_at_each_start(tmp_path: Path) -> None:
    """The manifest's capabilities alone are enough for a new folder and for an existing one."""
    if os.geteuid() != 0:
        missing("root, which the container is")
    things = render(kubectl(tmp_path), "whole")
    (host,) = [t for t in things if (t["kind"], t["metadata"]["name"]) == ("DaemonSet", "host")]
    spec = host["spec"]["template"]["spec"]
    (first,) = spec["initContainers"]
    rights = "".join(
        f",+{name.lower()}" for name in first["securityContext"]["capabilities"]["add"]
    )
    words = [word.replace("/run/heddle", str(tmp_path / "run")) for word in first["command"]]
    (tmp_path / "run").mkdir()
    user = spec["securityContext"]["runAsUser"]
    for _ in range(2):
        subprocess.run(
            [
                "setpriv",
                "--no-new-privs",
                "--inh-caps=-all",
                f"--bounding-set=-all{rights}",
                *words,
            ],
            check=True,
        )
        state = (tmp_path / "run" / "ports").stat()
        assert (state.st_uid, state.st_gid, state.st_mode & 0o777) == (user, user, 0o755)
    without = rights.replace(",+chown", "")
    refused = subprocess.run(
        ["setpriv", "--no-new-privs", "--inh-caps=-all", f"--bounding-set=-all{without}",
         *[word.replace("ports", "others") for word in words]],
        capture_output=True, check=False,
    )  # fmt: skip
    assert refused.returncode != 0
