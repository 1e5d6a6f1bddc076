"""However a lab ends, nothing of it stays, and nothing else is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle_emulator.cli import run_command_line
from heddle_emulator.netns import mark, tools
from tests.integration.labbing import fresh_name, require_lab, residue
from tests.support.waiting import PATIENCE, wait_until

EMULATOR = str(Path(sys.executable).with_name("heddle-emulator"))


@pytest.fixture
def name() -> Iterator[str]:
    """The name of a lab; what is left of that lab after the test is removed."""
    require_lab()
    lab = fresh_name()
    yield lab
    if lab in mark.labs():
        mark.remove(mark.claim(lab))


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of ``heddle-emulator lab`` in a process."""
    return subprocess.run(
        [EMULATOR, "lab", *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def _up(name: str) -> subprocess.Popen[bytes]:
    """Start to build the smallest lab; do not wait."""
    return subprocess.Popen(
        [EMULATOR, "lab", "up", "--name", name, "--leaves=2", "--spines=1", "--hosts=1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def _begun(name: str) -> bool:
    """Return whether daemons of a lab run."""
    return len(mark.processes(mark.namespaces(name))) > 2


def _end_while_building(name: str, how: signal.Signals) -> int:
    """Send the builder of a lab a signal once daemons run; return its exit status.

    If the lab is up before the signal comes, it is built again.
    """
    while True:
        builder = _up(name)
        wait_until(lambda: _begun(name), "daemons")
        builder.send_signal(how)
        builder.communicate(timeout=PATIENCE)
        if mark.read_state(name) is None:
            return builder.returncode
        mark.remove(mark.claim(name))


def _swept(name: str) -> bool:
    """Remove unfinished labs as the next start does; return whether nothing of a lab is left."""
    mark.sweep()
    return residue(name) == []


def _break(name: str) -> None:
    """Cut a cable and kill a daemon."""
    tools.run_program(["ip", "-netns", mark.namespace(name, "s0"), "link", "set", "l0", "down"])
    (daemon,) = [
        process
        for process in mark.processes([mark.namespace(name, "s1")])
        if Path(f"/proc/{process}/comm").read_text().strip() == "bgpd"
    ]
    os.kill(daemon, signal.SIGKILL)
    wait_until(lambda: daemon not in mark.processes([mark.namespace(name, "s1")]), "its end")


def test_up_status_exec_down(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A person builds a lab, checks it, runs commands in it, breaks it, and removes it."""
    counts = ("--leaves=2", "--spines=2", "--hosts=1", "--underlay-only")
    up = _run("up", "--name", name, *counts)
    assert up.returncode == 0, up.stderr
    assert "4 switches, 2 hosts with 2 NICs, 6 cables" in up.stdout
    assert run_command_line(["lab", "up", "--name", name]) == 1
    assert "up already" in capsys.readouterr().err
    assert run_command_line(["lab", "status", "--name", name]) == 0
    assert "4 bgpd, 4 zebra" in capsys.readouterr().out
    told = _run("exec", "--name", name, "l0", "vtysh", "-c", "show ip bgp summary")
    assert "Peers 2" in told.stdout
    assert run_command_line(["lab", "exec", "--name", name, "l9", "true"]) == 1
    assert "no node l9" in capsys.readouterr().err
    _break(name)
    assert run_command_line(["lab", "status", "--name", name]) == 1
    amiss = capsys.readouterr().out
    assert "cut: l0,s0,0" in amiss
    assert "amiss: 1 of 4 bgpd do not run" in amiss
    assert run_command_line(["lab", "down", "--name", name]) == 0
    assert residue(name) == []
    assert run_command_line(["lab", "status", "--name", name]) == 1
    assert "not up" in capsys.readouterr().err


def test_killed_while_building_leaves_nothing_after_the_next_start(name: str) -> None:
    """After SIGKILL the next start removes the remains by their marks, and nothing else."""
    stranger = f"test-{name}"
    tools.run_program(["ip", "netns", "add", stranger])
    bystander = subprocess.Popen(["ip", "netns", "exec", stranger, "sleep", "60"])
    try:
        _end_while_building(name, signal.SIGKILL)
        wait_until(lambda: _swept(name), "nothing to be left")  # a lab of another test may sweep it
        assert bystander.poll() is None
        assert Path("/run/netns", stranger).exists()
    finally:
        bystander.kill()
        bystander.wait()
        tools.run_program(["ip", "netns", "del", stranger])


def test_interrupted_while_building_leaves_nothing(name: str) -> None:
    """After Ctrl-C the lab is gone when the command has ended."""
    assert _end_while_building(name, signal.SIGINT) == 130
    assert residue(name) == []


def test_a_lab_in_use_is_not_swept(name: str) -> None:
    """The next start does not touch a lab that somebody builds or runs."""
    claim = mark.claim(name)
    assert name not in mark.sweep()
    assert (mark.FOLDER / name).exists()
    mark.remove(claim)
    assert residue(name) == []
