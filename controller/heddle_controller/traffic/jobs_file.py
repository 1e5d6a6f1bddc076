"""Reads jobs.yaml: a list of placed jobs, each with collectives or the trace of a real run.

A trace also has the degrees of the parallelism. A degree that the job states counts. A degree that
it leaves out is taken from the trace, except for dp, which takes the ranks that remain. So a run
that was recorded on 128 GPUs can be replayed on 1,024. Collectives of the trace are dropped if
their groups have a single member in this job.

Everything that needs no fabric is checked here, so that the message names the file. Whether the
hosts exist is checked in ``jobs``.

Host names may have the short form of cluster schedulers: ``host[0-3,8]`` or ``n[001-128]``. A job
on parts of hosts names the GPUs. ``gpus: [0, 1]`` of the job counts for each of its hosts, and that
of an entry ``{host: n[1-4], gpus: [0, 1]}`` for the hosts of the entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from heddle.gpus import parse_gpus
from heddle_controller.model.errors import MAX_PROBLEMS, InputError, Problem, refuse
from heddle_controller.model.files.records import short
from heddle_controller.model.files.yaml_text import Record, load_yaml
from heddle_controller.model.flows import TrafficClass
from heddle_controller.model.host_lists import MAX_HOSTS, expand
from heddle_controller.model.job import (
    Algorithm,
    Collective,
    Gpus,
    Group,
    Job,
    Operation,
    Parallelism,
)
from heddle_controller.traffic.fields import Fields
from heddle_controller.traffic.groups import group_size, resolve_parallelism
from heddle_controller.traffic.jobs import job_problems, shared_hosts
from heddle_controller.traffic.traces import Trace, load_trace

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_NAME_CURE = "give 1 to 63 letters, digits, '-', '_' or '.'"
_DEGREES = ("tp", "pp", "dp", "cp", "ep")
_KEYS = ("job", "hosts", "gpus_per_host", "gpus", "parallelism", "collectives", "trace")
_MORE_KEYS = ("priority", "class", "qps", "flops_per_iteration", "suspended")
_ITERATION = ("compute_seconds", "network_seconds")

_OPERATIONS = {operation.value: operation for operation in Operation}
_GROUPS = {group.value: group for group in Group}
_ALGORITHMS = {algorithm.value: algorithm for algorithm in Algorithm}
_CLASSES = {name.name.lower(): name for name in TrafficClass}


def load_jobs(path: Path, hosts_if_none: int = 0) -> tuple[Job, ...]:
    """Return the jobs of a jobs.yaml (plain or gzip), in order of the file.

    ``trace:`` is the path of a file, relative to the folder of the yaml. A job without hosts gets
    ``hosts_if_none`` made-up ones; if that is 0, every job must name its hosts.

    Raises:
        InputError: the file cannot be read or is not a list of jobs, a job is faulty (each
            problem names the job and its line), or two jobs have the same name, host or GPU.
    """
    document = load_yaml(path)
    if not isinstance(document, list) or not document:
        found = "is empty" if not document else f"is {short(document)}"
        raise refuse(str(path), "", f"the list of jobs {found}; give one or more '- job: NAME'")
    reader = _Reader(path, hosts_if_none)
    jobs = [job for row, record in enumerate(document) for job in reader.job(row, record)]
    problems = reader.problems or list(shared_hosts(jobs))
    if problems:
        raise InputError(str(path), *problems[:MAX_PROBLEMS])
    return tuple(jobs)


def read_job(path: Path, row: int, record: object) -> tuple[list[Job], list[Problem]]:
    """Return the job of a record in another file, and the problems of that record.

    The list has one job, or none if the record is too faulty. ``row`` is the place of the record in
    its list. ``trace:`` is relative to the folder of ``path``.
    """
    reader = _Reader(path)
    return list(reader.job(row, record)), reader.problems


class _Reader:
    """Reads the jobs of one file, gathers problems, and keeps traces that several jobs name."""

    def __init__(self, path: Path, hosts_if_none: int = 0) -> None:
        self.path = path
        self.hosts_if_none = hosts_if_none
        self.problems: list[Problem] = []
        self.traces: dict[str, Trace] = {}

    def job(self, row: int, record: object) -> Iterator[Job]:
        """Yield the job of a record; nothing if its fields are faulty."""
        if not isinstance(record, Record):
            reason = f"is {short(record)}; give a mapping that starts with 'job: NAME'"
            self.problems.append(Problem(f"jobs[{row}]", reason))
            return
        before = len(self.problems)
        name = record.get("job")
        told = f"job {name!r}" if isinstance(name, str) else f"jobs[{row}]"
        label = f"{told} (line {record.line})"
        fields = Fields(record, label, self.problems)
        job = self._plain(fields)
        trace = self._trace(fields)
        if len(self.problems) == before:
            yield from self._resolved(job, trace, label)

    def _plain(self, fields: Fields) -> Job:
        """Return the job without what its trace adds."""
        fields.only(*_KEYS, *_MORE_KEYS, *_ITERATION)
        name = fields.text("job", _NAME_CURE)
        if name and not _NAME.fullmatch(name):
            fields.fault(f"the name {short(name)} cannot be used; {_NAME_CURE}")
        hosts, gpus = _placed(fields, self.hosts_if_none)
        counts = {len(part) for part in gpus}
        return Job(
            name=name,
            hosts=hosts,
            gpus_per_host=_gpus_per_host(fields, counts)
            if gpus
            else fields.integer("gpus_per_host"),
            gpus=gpus,
            parallelism=self._parallelism(fields),
            collectives=tuple(self._collectives(fields)),
            priority=fields.positive("priority", 0.0),
            flops_per_iteration=fields.positive("flops_per_iteration", 0.0),
            suspended=fields.flag("suspended"),
            compute_seconds=fields.positive("compute_seconds", 0.0),
            network_seconds=fields.positive("network_seconds", 0.0),
            traffic_class=fields.choice("class", _CLASSES, TrafficClass.BANDWIDTH),
            qps=fields.integer("qps", 1),
        )

    def _parallelism(self, fields: Fields) -> Parallelism:
        value = fields.record.get("parallelism")
        if value is None:
            return Parallelism()
        if not isinstance(value, Record):
            fields.fault(f"parallelism is {short(value)}; give a mapping such as {{tp: 8, dp: 4}}")
            return Parallelism()
        degrees = Fields(value, f"{fields.label}, parallelism", self.problems)
        degrees.only(*_DEGREES)
        return Parallelism(**{name: degrees.integer(name, 0, least=0) for name in _DEGREES})

    def _collectives(self, fields: Fields) -> Iterator[Collective]:
        for row, value in enumerate(fields.entries("collectives")):
            if not isinstance(value, Record):
                reason = f"is {short(value)}; give operation, group and bytes"
                fields.fault(f"collectives[{row}] {reason}")
                continue
            label = f"{fields.label}, collectives[{row}] (line {value.line})"
            collective = Fields(value, label, self.problems)
            collective.only("operation", "group", "bytes", "algorithm", "overlap")
            yield Collective(
                operation=collective.choice("operation", _OPERATIONS),
                group=collective.choice("group", _GROUPS),
                bytes=collective.size("bytes"),
                algorithm=collective.choice("algorithm", _ALGORITHMS, Algorithm.AUTO),
                overlap=collective.flag("overlap"),
            )

    def _trace(self, fields: Fields) -> Trace | None:
        if fields.record.get("trace") is None:
            return None
        if fields.record.get("collectives"):
            fields.fault("has both trace and collectives; keep one of them")
        name = fields.text("trace", "give the name of a file")
        if name and name not in self.traces:
            try:
                self.traces[name] = load_trace(self.path.parent / name)
            except InputError as error:
                fields.fault(f"trace {error}")
        return self.traces.get(name)

    def _resolved(self, job: Job, trace: Trace | None, label: str) -> Iterator[Job]:
        """Yield the job with its trace filled in, checked as far as possible without a fabric."""
        if trace:
            job = replace(job, parallelism=_filled(job.parallelism, trace.parallelism))
        try:
            parallelism = resolve_parallelism(job)
        except InputError as error:
            self.problems += [Problem(f"{label}, {p.record}", p.reason) for p in error.problems]
            return
        if trace:
            used = (c for c in trace.collectives if group_size(parallelism, c.group) > 1)
            job = replace(job, collectives=tuple(used))
        found = job_problems(job, parallelism)
        self.problems += [Problem(f"{label}, {p.record}", p.reason) for p in found]
        yield job


def _filled(given: Parallelism, told: Parallelism) -> Parallelism:
    """Return ``given`` with missing degrees taken from a trace, except for dp."""
    degrees: dict[str, Any] = {
        name: getattr(given, name) or getattr(told, name) for name in _DEGREES if name != "dp"
    }
    return replace(given, **degrees)


def _placed(fields: Fields, if_none: int) -> tuple[tuple[str, ...], tuple[Gpus, ...]]:
    """Return the hosts, and the GPUs of each; no GPUs if the job has whole hosts."""
    value = fields.record.get("hosts")
    entries = [value] if isinstance(value, str) else fields.entries("hosts")
    if not entries:
        entries = [f"{fields.label} {row}" for row in range(min(if_none, MAX_HOSTS))]
    if not entries:
        cure = "name them in rank order, or find some by 'heddle job place --hosts NUMBER'"
        fields.fault(f"has no hosts; {cure}")
    whole = _gpus(fields, "gpus")
    hosts: list[str] = []
    gpus: list[Gpus] = []
    for row, entry in enumerate(entries):
        own, part = _entry(fields, row, entry)
        hosts += own
        gpus += [whole if part is None else part] * len(own)
    if not all(gpus) and any(gpus):
        bare = hosts[[*map(bool, gpus)].index(False)]
        fields.fault(f"host {bare!r} has no gpus, others have; give them for each, or for the job")
        gpus = []
    return tuple(hosts), tuple(gpus) if all(gpus) else ()


def _entry(fields: Fields, row: int, entry: object) -> tuple[list[str], Gpus | None]:
    """Return the hosts of an entry, with short forms expanded, and its GPUs or None."""
    part = None
    if isinstance(entry, Record):
        own = Fields(entry, f"{fields.label}, hosts[{row}]", fields.problems)
        own.only("host", "gpus")
        entry, part = entry.get("host"), _gpus(own, "gpus") or None
    if not isinstance(entry, str) or not entry:
        fields.fault(f"hosts[{row}] is {short(entry)}; give a name, in quotes if need be")
        return [], part
    try:
        return expand(entry), part
    except ValueError as error:
        fields.fault(f"hosts[{row}]: {error}")
        return [], part


def _gpus(fields: Fields, name: str) -> Gpus:
    """Return the GPUs of a field, a list or text such as ``0-3``; empty if absent or faulty."""
    value = fields.record.get(name)
    if value is None:
        return ()
    what = "give the GPUs of a host, such as [0, 1] or 0-3"
    if isinstance(value, str):
        try:
            return parse_gpus(value)
        except ValueError as error:
            fields.fault(f"{name}: {error}")
            return ()
    if not isinstance(value, list) or not value or not all(type(gpu) is int for gpu in value):
        fields.fault(f"{name} is {short(value)}; {what}")
        return ()
    return tuple(value)


def _gpus_per_host(fields: Fields, counts: set[int]) -> int:
    """Return how many GPUs each host gives; 0 if the numbers differ."""
    number = counts.pop() if len(counts) == 1 else 0
    told = fields.integer("gpus_per_host", number, least=0)
    if told != number:
        there = f"gpus names {number}" if number else "gpus names different numbers"
        fields.fault(f"gpus_per_host is {told}, and {there}; leave it out")
    return number
