from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.operating import heddle
from tests.support.ports import free_port


def test_help_tells_the_exit_codes() -> None:
    """The help also lists the commands."""
    done = heddle("--help")
    assert done.code == 0
    for word in ("fabric", "job", "plan", "show", "demand", "3  done, but some flow has no path"):
        assert word in done.out


@pytest.mark.parametrize("group", ["fabric", "job", "demand", "show"])
def test_every_command_has_help(group: str) -> None:
    """Every command has a description of several words."""
    done = heddle(group, "--help")
    lines = done.out.partition("Commands:\n")[2].splitlines()
    assert lines
    assert all(len(line.split()) > 2 for line in lines)


def test_an_unreachable_controller_is_named_with_the_cure() -> None:
    """The error is one line and the exit status is 2."""
    port = free_port()
    done = heddle("--server", f"127.0.0.1:{port}", "job", "list")
    assert done.code == 2
    assert done.err == (
        f"error: cannot reach the controller at 127.0.0.1:{port} (Connection refused): "
        "start it with 'heddle-controller serve', or name another with --server\n"
    )


def test_a_host_that_nobody_knows_is_named_with_the_cause() -> None:
    """The cause is the resolver's own words, without the brackets around them."""
    done = heddle("--server", "nobody.invalid:7400", "job", "list")
    assert (done.code, "nobody.invalid:7400 (" in done.err) == (2, True)
    assert "]" not in done.err


def test_a_controller_that_does_not_answer_is_not_waited_for() -> None:
    """If a port accepts and sends nothing, the command ends within its timeout."""
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        server = f"127.0.0.1:{mute.getsockname()[1]}"
        done = heddle("--server", server, "--timeout", "0.3", "job", "list")
    assert done.code == 2
    assert server in done.err
    assert len(done.err.splitlines()) == 1


def test_a_prolog_whose_controller_is_silent_names_no_option(tmp_path: Path) -> None:
    """It succeeds and tells the reason. Its time limits are settings of Slurm's administrator."""
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n0", "SLURM_JOB_COMMENT": "heddle: gpus=1"}
    (tmp_path / "slurm-7").mkdir()  # as the script that calls it does
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        server = f"127.0.0.1:{mute.getsockname()[1]}"
        program = Path(sys.executable).with_name("heddle")
        words = ("slurm", "prolog", "--answer", "0.3", "--directory", tmp_path)
        done = subprocess.run(
            [program, "--server", server, *words],
            env={**os.environ, **job, "SLURM_JOB_UID": str(os.getuid())},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0
    assert done.stderr.endswith(f"job 7: the controller at {server} did not answer in time\n")


@pytest.mark.parametrize(
    "address", ["7400", "localhost:", ":7400", "localhost:x", "http://localhost:7400", ""]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    """The error says which form an address has."""
    done = heddle("--server", address, "fabric", "list")
    assert (done.code, "use host:port" in done.err) == (2, True)


@pytest.mark.parametrize(
    "words",
    [
        ("nonsense",),
        ("fabric", "link", "a,b", "sideways"),
        ("job", "submit"),
        ("--timeout", "x", "job"),
    ],
)
def test_wrong_usage_exits_2(words: tuple[str, ...]) -> None:
    """The usage line is printed."""
    done = heddle(*words)
    assert done.code == 2
    assert "Usage:" in done.err


def test_a_pem_file_that_cannot_be_read_is_named() -> None:
    """The error names the file and the exit status is 2."""
    done = heddle("--tls-ca", "/nowhere/ca.pem", "fabric", "list")
    assert (done.code, "/nowhere/ca.pem" in done.err) == (2, True)


def test_a_file_of_tokens_that_cannot_be_looked_at_is_named(tmp_path: Path) -> None:
    """The error is one line, and the exit status is 2."""
    file = tmp_path / ("x" * 300)
    done = heddle("token", "new", "ci", "--role", "reader", "--file", str(file))
    assert (done.code, done.err) == (2, f"error: {file}: File name too long\n")


@pytest.mark.parametrize(
    "words",
    [
        ["heddle", "completion", "bash"],
        ["heddle", "--help"],
        ["heddle", "job", "submit", "--help"],
        ["heddle-agent", "--version"],
        ["heddle-agent", "run", "--help"],
        ["heddle-controller", "--help"],
        ["heddle-controller", "serve", "--help"],
        ["heddle-emulator", "--help"],
        ["heddle-emulator", "topology", "--help"],
        ["heddle-kubernetes", "--help"],
    ],
    ids=" ".join,
)
def test_a_full_output_is_told_in_one_line(words: list[str]) -> None:
    """The command fails with status 1 and no traceback, also if it prints only a help text."""
    program, *more = words
    command = [str(Path(sys.executable).parent / program), *more]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr == b"error: the output cannot be written: No space left on device\n"


def test_a_supposed_state_is_given_once() -> None:
    """A link that is assumed to be down and up is refused before any controller is asked."""
    done = heddle("--fabric", "f", "show", "what-if", "--down", "a,b", "--up", "a,b")
    assert done.code == 2
    assert "a,b is named twice" in done.err
