"""A real Slurm of eight nodes on this machine: munged, slurmctld, and a slurmd for each node."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.needs import missing
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE, wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
CLUSTER = "alps"
GPUS = 8
"""GPUs of each node, represented by plain files."""
CONFIGURATION = """\
ClusterName={cluster}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SlurmdSpoolDir={folder}/spool.%n
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0,bf_interval=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=1
CompleteWait=0
MessageTimeout=100
GresTypes=gpu
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=EXCLUSIVE
PartitionName=shared Nodes=ALL MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def patiently(holds: Callable[[], object], what: str) -> None:
    """Call ``wait_until`` with pauses, for conditions that are costly to check."""

    def asked() -> object:
        time.sleep(0.1)
        return holds()

    wait_until(asked, what)


class Slurm:
    """One cluster; its files are below ``folder``."""

    def __init__(self, folder: Path, nodes: tuple[str, ...]) -> None:
        """Write its files; nothing runs yet."""
        self.folder = folder
        self.nodes = nodes
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "state").mkdir()
        self.file = folder / "slurm.conf"
        lines = [
            f"NodeName={node} NodeAddr=127.0.0.1 Port={free_port()} CPUs=4 Gres=gpu:{GPUS}"
            for node in nodes
        ]
        for gpu in range(GPUS):
            (folder / f"gpu{gpu}").touch()
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-{GPUS - 1}]\n")
        self.file.write_text(
            CONFIGURATION.format(
                cluster=CLUSTER, port=free_port(), folder=folder, nodes="\n".join(lines)
            )
        )

    def start(self) -> None:
        """Start all daemons, and wait until every node is idle."""
        self._start_munged()
        self.start_controller()
        for node in self.nodes:
            self._start_node(node)
        patiently(lambda: self.states() == {"idle"}, "all nodes of Slurm to be idle")

    def start_controller(self) -> None:
        """Start slurmctld, which continues with its saved state."""
        self._run("slurmctld", "slurmctld", "-D", "-f", str(self.file))
        patiently(lambda: self.type("scontrol", "ping").returncode == 0, "slurmctld to answer")

    def stop(self, name: str) -> None:
        """Kill one of its daemons."""
        daemon = self.running.pop(name)
        daemon.kill()
        daemon.wait()

    def close(self) -> None:
        """End everything: daemons, and then steps of jobs, which outlive their daemons."""
        ending = [self.running.pop(name) for name in reversed([*self.running])]
        for daemon in ending:
            daemon.terminate()
        for daemon in ending:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        wait_until(self._none_left, "all steps of jobs to be gone")

    def _none_left(self) -> bool:
        """Kill what is left of the cluster; return whether nothing was."""
        left = [*self._processes()]
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return not left

    def _processes(self) -> Iterator[int]:
        """Yield processes that began in the folder of the cluster, or that its daemons started."""
        folder = os.fsencode(self.folder)
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended since
                # Daemons give steps and scripts SLURM_CONF, and these give it to what they start.
                at = os.fsencode(process.joinpath("cwd").readlink())
                if folder in at or folder in process.joinpath("environ").read_bytes():
                    yield int(process.name)

    def type(self, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command as a user of the cluster."""
        return subprocess.run(
            [str(word) for word in words],
            env={**os.environ, "SLURM_CONF": str(self.file), **environment},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )

    def must(self, *words: str | Path, **environment: str) -> str:
        """Run a command that must succeed; return its output."""
        done = self.type(*words, **environment)
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}{self.said()}"
        return done.stdout

    def lines(self, *words: str) -> list[str]:
        """Return the lines that a command prints."""
        return self.must(*words).splitlines()

    def states(self) -> set[str]:
        """Return the states of all nodes."""
        done = self.type("sinfo", "-h", "-N", "-o", "%t")
        return set(done.stdout.split())

    def script(self, text: str) -> Path:
        """Write a batch script, which starts in the cluster's folder; return its path."""
        path = self.folder / f"script.{secrets.token_hex(4)}"
        path.write_text(f"#!/bin/bash\n{text}")
        path.chmod(0o755)
        return path

    def sbatch(self, text: str, *options: str) -> int:
        """Submit a batch script and return the id of its job; ``output`` returns what it prints."""
        words = ("sbatch", "--parsable", "-o", f"{self.folder}/out.%j", *options)
        return int(self.must(*words, self.script(text)).split(";")[0])

    def output(self, job: int) -> str:
        """Return what a batch script has printed so far."""
        path = self.folder / f"out.{job}"
        return path.read_text() if path.exists() else ""

    def state(self, job: int) -> str:
        """Return the state of a job: COMPLETED, RUNNING and so on."""
        shown = self.must("scontrol", "-o", "show", "job", str(job))
        return shown.partition("JobState=")[2].split()[0]

    def ended(self, job: int) -> str:
        """Wait until a job has completed, and return its output."""
        over = {"COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT", "BOOT_FAIL"}
        patiently(lambda: self.state(job) in over, f"job {job} to end")
        assert self.state(job) == "COMPLETED", f"{self.output(job)}{self.said()}"
        return self.output(job)

    def cancel_all(self) -> None:
        """Cancel all jobs, and wait until none is left."""
        if self.lines("squeue", "-h"):
            self.must("scancel", "--user=root")
            patiently(lambda: not self.lines("squeue", "-h"), "all jobs to be cancelled")

    def starts_again(self, job: int) -> None:
        """Wait until a job waits for its next start, and let it begin at once."""
        patiently(lambda: self.state(job) in {"PENDING", "REQUEUED"}, f"job {job} to be requeued")
        now = ("scontrol", "update", f"JobId={job}", "StartTime=now")
        patiently(lambda: self.type(*now).returncode == 0, f"job {job} to be released")

    def fail(self, node: str) -> None:
        """Make a node fail: its daemon dies, and Slurm marks it as down."""
        self.stop(node)
        self.must("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")

    def mend(self, node: str) -> None:
        """Bring a node back."""
        # Resume first: once the daemon has registered, Slurm may have resumed the node by itself.
        self.must("scontrol", "update", f"NodeName={node}", "State=RESUME")
        self._start_node(node)
        patiently(lambda: self.states() == {"idle"}, "all nodes of Slurm to be idle")

    def _start_node(self, node: str) -> None:
        self._run(node, "slurmd", "-D", "-N", node, "-f", str(self.file))

    def said(self) -> str:
        """Return the last lines of its daemons' logs."""
        logs = sorted(self.folder.glob("*.log"))
        return "".join(f"\n{log.name}: {log.read_text()[-300:]}" for log in logs)

    def _start_munged(self) -> None:
        folder = self.folder / "munge"
        folder.mkdir(mode=0o711)
        key = folder / "key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        for path in (folder, key):
            shutil.chown(path, "munge", "munge")
        names = {"key-file": key, "socket": folder / "socket"}
        names |= {name: folder / name for name in ("pid-file", "log-file", "seed-file")}
        options = [f"--{name}={path}" for name, path in names.items()]
        as_munge = ("setpriv", "--reuid=munge", "--regid=munge", "--clear-groups")
        self._run("munged", *as_munge, "munged", "--foreground", *options)
        wait_until((folder / "socket").exists, "munged to listen")

    def _run(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self.running[name] = subprocess.Popen(
                words,
                cwd=self.folder,
                env={"PATH": os.environ["PATH"]},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )


@contextmanager
def slurm_files(nodes: tuple[str, ...]) -> Iterator[Slurm]:
    """Create a cluster that is not started yet; end it in any case."""
    lacking = [program for program in PROGRAMS if shutil.which(program) is None]
    if lacking:
        missing(f"{lacking[0]}: apt-get install slurmctld slurmd slurm-client munge")
    if os.getuid():
        missing("a Slurm: slurmd runs as root")
    with tempfile.TemporaryDirectory(prefix="heddle-slurm-") as folder:
        Path(folder).chmod(0o755)  # munged needs to pass through it
        slurm = Slurm(Path(folder), nodes)
        try:
            yield slurm
        finally:
            slurm.close()
