"""Jobs of a drill, as in jobs.yaml, and how long they compute and go on; and how control behaves.

::

    jobs:
      - job: big
        hosts: [l0-h0, l1-h0]
        gpus_per_host: 8
        parallelism: {dp: 16}
        collectives: [{operation: all_reduce, group: dp, bytes: 64MB}]
        compute: 10ms       # of an iteration, in which nothing is sent; none by default
        iterations: 20      # without it, until the run ends
    control: {detect: 1ms, notice: 500us, report: 1ms, plan: 20ms, push: 5ms, bgp: 100ms}

A job that a step submits does not run from the beginning.
"""

from __future__ import annotations

from pathlib import Path

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.records import short
from heddle_controller.traffic.checks import host_problems
from heddle_controller.traffic.fields import Fields
from heddle_controller.traffic.jobs_file import read_job
from heddle_controller.traffic.yaml_text import Record
from heddle_emulator.drill.load.durations import CURE, seconds
from heddle_emulator.drill.scenario import ControlDelays, JobSpec

OWN = ("compute", "iterations")
TIMES = ("detect", "silent", "notice", "report", "plan", "push", "bgp")


def read_drill_jobs(fields: Fields, path: Path, fabric: Fabric) -> tuple[JobSpec, ...]:
    """The jobs, in order of the file."""
    found = []
    for row, record in enumerate(fields.entries("jobs")):
        if not isinstance(record, Record):
            fields.fault(f"jobs[{row}] is {short(record)}; give a mapping with 'job: NAME'")
            continue
        plain = Record({key: value for key, value in record.items() if key not in OWN})
        plain.line = record.line
        jobs, problems = read_job(path, row, plain)
        fields.problems += problems
        own = Fields(record, f"jobs[{row}] (line {record.line})", fields.problems)
        compute = _time(own, "compute", 0.0)
        iterations = own.integer("iterations", 0, least=0)
        for job in jobs:
            for problem in host_problems(job, fabric):
                own.fault(f"{problem.record} {problem.reason}")
            found.append(JobSpec(job, compute, iterations, record.line))
    return tuple(found)


def read_control(fields: Fields) -> ControlDelays:
    """How long control takes, where it is told."""
    value = fields.record.get("control")
    if value is None:
        return ControlDelays()
    if not isinstance(value, Record):
        fields.fault(f"control is {short(value)}; give a mapping such as {{plan: 20ms}}")
        return ControlDelays()
    own = Fields(value, f"control (line {value.line})", fields.problems)
    own.only(*TIMES, "measured")
    plain = ControlDelays()
    times = {name: _time(own, name, getattr(plain, name)) for name in TIMES}
    return ControlDelays(**times, measured=value.get("measured", False) is True)


def _time(own: Fields, name: str, default: float) -> float:
    if name not in own.record:
        return default
    value = seconds(own.record[name])
    if value is None:
        own.fault(f"{name} is {short(own.record[name])}; {CURE}")
        return default
    return value
