"""The Debian packages: built, installed in a bare Debian, upgraded, removed and purged there."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.bare_debian import Machine, build, layer
from tests.support.needs import missing
from tests.support.waiting import wait_until

EXPOSURE = 1.3
UNITS = {
    "heddle-agent": ("heddle-agent", "heddle-host"),
    "heddle-controller": ("heddle-controller",),
}


@pytest.fixture
def machine(base: Path, tmp_path: Path) -> Iterator[Machine]:
    """A bare machine."""
    with layer(base, tmp_path, "bare") as made:
        yield made


def given(machine: Machine, deb: Path) -> str:
    """Copy a package to a machine, and return its path there."""
    shutil.copy(deb, machine.path("/root"))
    return f"/root/{deb.name}"


def newer(deb: Path, folder: Path) -> Path:
    """Build the same package as version 0.2.0, whose settings have another comment."""
    tree = folder / "newer"
    subprocess.run(["dpkg-deb", "-R", deb, tree], check=True)
    control = tree / "DEBIAN" / "control"
    control.write_text(
        re.sub(r"^Version: .*$", "Version: 0.2.0", control.read_text(), flags=re.MULTILINE)
    )
    for file in (tree / "etc" / "heddle").glob("*.env"):
        file.write_text(file.read_text() + "# of 0.2.0\n")
    subprocess.run(["dpkg-deb", "-Zgzip", "-z1", "-b", tree, folder], check=True)
    shutil.rmtree(tree)
    (made,) = folder.glob("*_0.2.0_*.deb")
    return made


def test_the_same_commit_gives_the_same_package(debs: dict[str, Path], tmp_path: Path) -> None:
    """A second build in another folder is the same, byte by byte."""
    again = build("agent", tmp_path)
    sums = [hashlib.sha256(deb.read_bytes()).hexdigest() for deb in (debs["heddle-agent"], again)]
    assert sums[0] == sums[1]


def test_a_controller_starts_answers_and_stops(machine: Machine, debs: dict[str, Path]) -> None:
    """It is installed by apt, started as its unit says, and asked by its own client."""
    machine.must(f"apt-get install -qq {given(machine, debs['heddle-controller'])}")
    machine.path("/etc/heddle/controller.env").write_text(
        "HEDDLE_LISTEN=127.99.0.1:7400\nHEDDLE_METRICS_HOST=127.99.0.1\n"
    )
    machine.start("heddle-controller")
    ask = "heddle --server 127.99.0.1:7400 fabric list"
    wait_until(lambda: machine.type(ask).returncode == 0, "the controller to answer")
    machine.must("test -s /var/lib/heddle-controller/heddle.sqlite3")
    assert machine.stop("heddle-controller") == 0
    assert machine.type(ask).returncode == 2


def test_the_agents_start(machine: Machine, debs: dict[str, Path]) -> None:
    """By dpkg alone, the switch's agent answers, and the host's has its user and folder."""
    machine.must(f"dpkg -i {given(machine, debs['heddle-agent'])}")
    with machine.path("/etc/heddle/agent.env").open("a") as settings:
        settings.write("HEDDLE_AGENT_METRICS_HOST=127.99.0.2\nHEDDLE_AGENT_METRICS_PORT=7402\n")
    machine.start("heddle-agent")
    read = (
        "python3 -c 'import urllib.request as u;"
        'print(u.urlopen("http://127.99.0.2:7402/metrics").read().decode())\''
    )
    wait_until(lambda: machine.type(read).returncode == 0, "the agent to answer")
    assert re.search(r"^heddle_agent_connected\S* 0\.0$", machine.must(read), re.MULTILINE)
    machine.start("heddle-host")
    assert machine.must("stat -c %U /run/heddle").strip() == "heddle"
    assert [machine.stop(unit) for unit in ("heddle-agent", "heddle-host")] == [0, 0]


@pytest.mark.parametrize("package", sorted(UNITS))
def test_upgrade_keeps_what_was_set_and_purge_leaves_nothing(
    package: str, machine: Machine, debs: dict[str, Path], tmp_path: Path
) -> None:
    """A changed file stays, an unchanged one is replaced, and state goes only with purge."""
    before = listing(machine)
    machine.must(f"dpkg -i {given(machine, debs[package])}")
    kept = f"/etc/heddle/{'agent' if package == 'heddle-agent' else 'controller'}.env"
    assert machine.must(f"stat -c '%a %U' {kept}").split() == ["600", "root"]
    machine.must(f"echo '# mine' >> {kept}")
    machine.must(f"install -d /var/lib/{package} && touch /var/lib/{package}/state")
    machine.must(
        f"dpkg --force-confdef --force-confold -i {given(machine, newer(debs[package], tmp_path))}"
    )
    assert machine.path(kept).read_text().endswith("# mine\n")
    if package == "heddle-agent":
        assert machine.path("/etc/heddle/host.env").read_text().endswith("# of 0.2.0\n")
    assert machine.must(f"dpkg-query -f '${{Version}}' -W {package}") == "0.2.0"
    machine.must(f"dpkg --verify {package} | grep -v ' c ' || true")
    machine.must(f"dpkg -r {package}")
    assert machine.path(f"/var/lib/{package}/state").exists()
    assert machine.path(kept).exists()
    assert not machine.path(f"/usr/lib/{package}").exists()
    machine.must(f"dpkg -P {package}")
    assert listing(machine) - before == set()


def listing(machine: Machine) -> set[str]:
    """Return all files except logs, caches, and what dpkg and the test itself keep."""
    skipped = r"/(proc|dev|sys|root|tmp|var/log|var/cache|var/lib/dpkg|var/lib/apt|run)(/|$)"
    told = machine.must("find / -xdev")
    backups = {"/etc/passwd-", "/etc/shadow-", "/etc/group-", "/etc/gshadow-", "/etc/subuid-"}
    return {line for line in told.splitlines() if not re.match(skipped, line)} - backups - {
        "/etc/subgid-", "/etc/.pwd.lock"}  # fmt: skip


@pytest.mark.parametrize("package", sorted(UNITS))
def test_installed_units_are_understood_and_hardly_exposed(
    package: str, machine: Machine, debs: dict[str, Path]
) -> None:
    """``systemd-analyze`` accepts the installed units and rates their exposure below the limit."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        missing("systemd-analyze: apt-get install systemd")
    machine.must(f"dpkg -i {given(machine, debs[package])}")
    for unit in UNITS[package]:
        there = machine.path(f"/usr/lib/systemd/system/{unit}.service")
        (program,) = re.findall(r"^ExecStart=(\S+)", there.read_text(), re.MULTILINE)
        assert program.startswith(f"/usr/lib/{package}/bin/")
        machine.must(f"test -x {program}")
        done = subprocess.run(
            [analyze, "security", "--offline=true", "--no-pager",
             f"--threshold={EXPOSURE * 10:.0f}", there],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
