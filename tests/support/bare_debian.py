"""Bare Debian systems below a folder, and the Debian packages of the project.

Machines are layers over one system that debootstrap made. They share the kernel and a network
namespace; each has its own files and processes. They have no systemd: a service is started as its
unit says (program, variables, credentials, folders, user), without its sandbox.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.needs import missing
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "deploy" / "debian" / "build"
MIRROR = "http://deb.debian.org/debian"
PLACES = {"%S": "/var/lib", "%t": "/run"}
"""What the folder specifiers in units of the system mean."""
TERM = 1 << (signal.SIGTERM - 1)


def build(name: str, folder: Path, version: str = "") -> Path:
    """Build the package of the agent or the controller as the page says; return its path."""
    env = {**os.environ, **({"VERSION": version} if version else {})}
    done = subprocess.run(
        [BUILD, name, folder], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def bare(folder: Path, release: str = "bookworm") -> Path:
    """Install Debian, 12 by default, with Python and only what it needs; return its root."""
    program = shutil.which("debootstrap")
    if program is None or os.geteuid() != 0:
        missing("debootstrap, and root: apt-get install debootstrap")
    root = folder / "bare"
    command = [program, "--variant=minbase", "--include=python3,ca-certificates", release]
    done = subprocess.run(
        [*command, str(root), MIRROR], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    # What is installed here need not survive a power loss.
    (root / "etc" / "dpkg" / "dpkg.cfg.d" / "unsafe").write_text("force-unsafe-io\n")
    return root


@dataclass
class Machine:
    """One Debian system."""

    name: str
    root: Path
    space: str = ""
    """The network namespace of its services; empty means this machine's own."""
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """Running services by unit."""

    def command(self, *words: str, user: str = "", online: bool = False) -> list[str]:
        """Return the command that runs words in it, with /proc and /dev."""
        into = [] if online or not self.space else ["ip", "netns", "exec", self.space]
        mounts = (
            f"mount -t proc proc {self.root}/proc; mount --bind /dev {self.root}/dev;"
            f' exec chroot {f"--userspec={user}" if user else ""} {self.root} "$@"'
        )
        return [*into, "unshare", "--mount", "sh", "-euc", mounts, "sh", *words]

    def type(self, text: str, *, online: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a text in root's shell, and wait for its end."""
        return subprocess.run(
            self.command("bash", "-euc", f"cd /root; {text}", online=online),
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8",
                 "DEBIAN_FRONTEND": "noninteractive", "HOST": self.name,
                 **{k: v for k, v in os.environ.items() if k.lower().endswith("_proxy")}},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def must(self, text: str, *, online: bool = False) -> str:
        """Run a text that must succeed; return its output."""
        done = self.type(text, online=online)
        assert done.returncode == 0, f"{self.name}: {text}\n{done.stdout}{done.stderr}{self.said()}"
        return done.stdout

    def path(self, inner: str) -> Path:
        """Return the path of one of its files on this machine."""
        return self.root / inner.lstrip("/")

    def said(self) -> str:
        """Return the ends of its services' logs."""
        logs = sorted(self.path("/var/log").glob("*.said"))
        return "".join(f"\n{self.name} {log.name}: {log.read_text()[-2000:]}" for log in logs)

    def start(self, unit: str) -> None:
        """Do what ``systemctl start`` does, without the sandbox."""
        told = self._told(unit)
        places = dict(PLACES)
        user = told.get("User", ["nobody" if told.get("DynamicUser") == ["yes"] else "root"])[-1]
        for kind, above in (("StateDirectory", "/var/lib"), ("RuntimeDirectory", "/run")):
            for name in told.get(kind, []):
                self.must(f"install -d -o {user} {above}/{name}")
        places["%d"] = f"/run/credentials/{unit}"
        for line in told.get("LoadCredential", []):
            name, _, source = line.partition(":")
            self.must(
                f"install -D -m 0400 -o {user} {source} {places['%d']}/{name};"
                f" chown {user} {places['%d']}"
            )
        variables = dict(shlex.split(line)[0].split("=", 1) for line in told.get("Environment", []))
        variables = {key: placed(value, places) for key, value in variables.items()}
        for line in told.get("EnvironmentFile", []):
            variables |= settings(self.path(line.removeprefix("-")))
        words = shlex.split(told["ExecStart"][-1])
        with self.path(f"/var/log/{unit}.said").open("ab") as log:
            self.running[unit] = subprocess.Popen(
                self.command(*words, user=user),
                env={"PATH": "/usr/sbin:/usr/bin", **variables},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _told(self, unit: str) -> dict[str, list[str]]:
        """Return the lines of a unit and its drop-ins; an empty value deletes earlier ones."""
        files = [
            self.path(f"/usr/lib/systemd/system/{unit}.service"),
            *sorted(self.path(f"/etc/systemd/system/{unit}.service.d").glob("*.conf")),
        ]
        if not files[0].exists():  # units of Debian's own packages
            files[0] = self.path(f"/lib/systemd/system/{unit}.service")
        told: dict[str, list[str]] = {}
        for file in files:
            for key, value in re.findall(r"^(\w+)=(.*)$", file.read_text(), re.MULTILINE):
                told[key] = [*told.get(key, []), value] if value else []
        return {key: value for key, value in told.items() if value}

    def stop(self, unit: str) -> int:
        """Send SIGTERM once the service handles it, and wait; return the exit status."""
        process = self.running.pop(unit)
        status = Path(f"/proc/{process.pid}/status")
        wait_until(lambda: TERM & caught(status.read_text()), f"{unit} to take signals")
        process.terminate()
        return process.wait()

    def end(self) -> None:
        """Kill everything that runs."""
        for process in self.running.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()


def caught(status: str) -> int:
    """Return the signals for which a process has a handler, as a mask."""
    (mask,) = re.findall(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)
    return int(mask, 16)


def placed(text: str, places: dict[str, str]) -> str:
    """Return a value of a unit with its specifiers replaced."""
    return re.sub(r"%\w", lambda sign: places[sign[0]], text)


def settings(file: Path) -> dict[str, str]:
    """Return the variables in an environment file."""
    lines = re.findall(r"^([A-Z_0-9]+)=(.*)$", file.read_text(), re.MULTILINE)
    return {name: " ".join(shlex.split(value)) for name, value in lines}


@contextmanager
def layer(base: Path, folder: Path, name: str, space: str = "") -> Iterator[Machine]:
    """Create a machine over the files of another; remove its own files afterwards."""
    for part in ("upper", "work", "root"):
        (folder / name / part).mkdir(parents=True)
    own = folder / name
    options = f"lowerdir={base},upperdir={own}/upper,workdir={own}/work"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, own / "root"], check=True)
    machine = Machine(name, own / "root", space)
    try:
        yield machine
    finally:
        machine.end()
        subprocess.run(["umount", "--lazy", own / "root"], check=True)
        shutil.rmtree(own)
