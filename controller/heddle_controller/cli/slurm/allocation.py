"""Reads a Slurm job from the environment of the job's programs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from heddle_controller.cli.failure import Failure
from heddle_controller.model.host_lists import MAX_HOSTS, expand_list

NODE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")
_NUMBER = re.compile(r"[0-9]{1,10}")


@dataclass(frozen=True, slots=True)
class Allocation:
    """One job, or one component of a heterogeneous job, as it runs now."""

    number: str
    """Slurm's id of the job."""
    name: str
    """Name of the job at the controller: CLUSTER-ID. Every component and every task of an array has
    its own id. The restart count is not part of it, because EpilogSlurmctld gets the next one."""
    restart: int
    """How often it was started before."""
    hosts: tuple[str, ...]
    """In Slurm's order."""
    tasks: tuple[int, ...]
    """Number of tasks of each host that the job asks for; empty if it asks for no tasks."""

    @property
    def attempt(self) -> str:
        """The job and its restart count, a name that no earlier start has."""
        return f"{self.name}.{self.restart}"


def allocation(environment: Mapping[str, str], component: int | None = None) -> Allocation:
    """Return the allocation in which, or for which, a program runs.

    Args:
        environment: Variables that Slurm sets.
        component: Component of a heterogeneous job, counted from 0; None for the first, or for a
            whole job.

    Raises:
        Failure: There is no allocation, or its variables cannot be read.
    """
    end = "" if component is None else f"_HET_GROUP_{component}"
    number = environment.get(f"SLURM_JOB_ID{end}", "")
    listed = environment.get(f"SLURM_JOB_NODELIST{end}", "")
    if not _NUMBER.fullmatch(number) or not listed:
        if component is not None:
            raise Failure(f"this allocation has no component {component}: see --het-group of srun")
        raise Failure(
            "this is no allocation of Slurm (SLURM_JOB_ID or SLURM_JOB_NODELIST is missing): "
            "run it in a script of sbatch, or below salloc"
        )
    try:
        hosts = tuple(expand_list(listed))
    except ValueError as error:
        raise Failure(f"SLURM_JOB_NODELIST{end}: {error}") from None
    # If a job asks for no tasks, Slurm tells the CPUs of its nodes here, and srun starts one task
    # on each node.
    asked = environment.get(f"SLURM_NTASKS{end}")
    tasks = environment.get(f"SLURM_TASKS_PER_NODE{end}", "") if asked else ""
    count = environment.get("SLURM_JOB_RESTART_COUNT") or environment.get("SLURM_RESTART_COUNT")
    return Allocation(
        number,
        slurm_job_name(environment, number),
        int(count) if count and _NUMBER.fullmatch(count) else 0,
        hosts,
        _tasks(tasks, len(hosts)),
    )


def allocated_nodes(seconds: float) -> Mapping[str, frozenset[str]] | None:
    """Return the nodes of each job that has some, by its id; None if Slurm does not answer.

    ``seconds`` is the time limit for Slurm's answer.
    """
    command = ["squeue", "--all", "--local", "--noheader", "--format=%A %N"]
    try:
        told = subprocess.run(  # noqa: S603 - Slurm's own command
            command, capture_output=True, text=True, check=True, timeout=seconds
        ).stdout
        jobs = [words for line in told.splitlines() if len(words := line.split()) > 1]
        return {number: frozenset(expand_list(listed)) for number, listed in jobs}
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def slurm_job_name(environment: Mapping[str, str], number: str) -> str:
    """Return the controller's name of a Slurm job."""
    return f"{environment.get('SLURM_CLUSTER_NAME') or 'slurm'}-{number}"


def _tasks(text: str, hosts: int) -> tuple[int, ...]:
    """Return the counts that ``2(x3),1`` stands for; empty unless there is one for each host."""
    found: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part.strip())
        if not match or int(match[2] or 1) > MAX_HOSTS:
            return ()
        found += [int(match[1])] * int(match[2] or 1)
    return tuple(found) if len(found) == hosts and all(found) else ()
