"""A configuration of the cluster that cannot be used."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from heddle_kubernetes.cli import main

CONTEXT = {"name": "c", "context": {"cluster": "c", "user": "u"}}
CLUSTER = {"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}


@pytest.fixture
def usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a configuration of a cluster at whose address nobody answers."""
    users = [{"name": "u", "user": {"token": "t"}}]
    usable = {"clusters": [CLUSTER], "contexts": [CONTEXT], "users": users, "current-context": "c"}
    (tmp_path / "config").write_text(json.dumps(usable))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "a: [",
        "\x00",
        json.dumps({"clusters": [], "contexts": [CONTEXT], "current-context": "c"}),
        json.dumps({
            "clusters": [CLUSTER],
            "contexts": [CONTEXT],
            "users": [{"name": "u", "user": {"client-certificate": "none", "client-key": "none"}}],
            "current-context": "c",
        }),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["serve", "clear"])
def test_the_error_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, command: str
) -> None:
    """The program ends with 2 and one line, which names the file."""
    file = tmp_path / "config"
    file.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(file))
    done = CliRunner().invoke(main, [command])
    assert done.exit_code == 2, done.output
    assert done.output.startswith(f"Error: {file} is no configuration of a cluster (")
    assert done.output.count("\n") == 1


@pytest.mark.usefixtures("usable")
@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--tls-ca", "FOLDER/none"], "--tls-ca FOLDER/none: No such file"),
        (["--tls-ca", "FOLDER/config"], "--tls-ca FOLDER/config: "),
        (["--tls-cert", "FOLDER/none"], "--tls-cert: certificate and key belong together"),
        (["--token-file", "FOLDER/none"], "--token-file FOLDER/none: No such file"),
        (["--token-file", "FOLDER/config", "--server", "h:1"], "--token-file: is not sent to h in"),
    ],
)
def test_files_are_checked_before_anybody_is_asked(
    tmp_path: Path, options: list[str], error: str
) -> None:
    """The program ends with 2 and one line, which names the option, although nobody answers."""
    words = [option.replace("FOLDER", str(tmp_path)) for option in options]
    done = CliRunner().invoke(main, ["serve", *words])
    assert done.exit_code == 2, done.output
    assert done.output.startswith(f"Error: {error.replace('FOLDER', str(tmp_path))}")
    assert done.output.count("\n") == 1


@pytest.mark.usefixtures("usable")
def test_a_port_that_is_taken_is_named() -> None:
    """The program ends with 2 and one line, which names the option and the address."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        done = CliRunner().invoke(main, ["serve", "--health", taken])
    assert done.exit_code == 2, done.output
    assert done.output.startswith(f"Error: --health {taken}: ")
    assert done.output.count("\n") == 1
