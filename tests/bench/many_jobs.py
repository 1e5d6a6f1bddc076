"""Many small jobs on a large fabric: the cost of one job, compared with that on a small fabric.

Measured from jobs.yaml to flows. A job should cost the same however large the fabric is. Both sizes
run in turns in one process. Processor time counts, so that other work on the machine has no part in
the ratio.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from heddle_controller.model.fabric import Fabric
from heddle_controller.traffic.jobs import flows_of_jobs
from heddle_controller.traffic.jobs_file import load_jobs
from tests.bench.planned import size_of
from tests.bench.rows import Row, Scale, quantile
from tests.bench.screen import Screen
from tests.bench.workloads import published_zones

MOST_RATIO = 1.5
"""Most that a job may cost on the large fabric, relative to the small one."""
HOSTS_A_JOB = 2
ROUNDS = 5


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return one row: seconds of processor for all jobs, and the ratio."""
    sizes = scale.growth_zones[0], scale.growth_zones[-1]
    fabrics = [published_zones(scale, zones) for zones in sizes]
    title = f"many jobs, {size_of(fabrics[-1])}"
    each: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as name:
        files = [Path(name) / f"jobs-{zones}.yaml" for zones in sizes]
        counts = [_write(path, fabric) for path, fabric in zip(files, fabrics, strict=True)]
        with screen.progress(title, ROUNDS) as advance:
            for _ in range(ROUNDS):
                small, large = (_seconds(*one) for one in zip(files, fabrics, strict=True))
                each.append((small / counts[0], large / counts[1]))
                advance(len(each))
    ratio = quantile([large / small for small, large in each], 0.5)
    large = quantile([one[1] for one in each], 0.5)
    return [
        Row(
            title,
            "Heddle",
            f"{large * counts[1]:.2f} s of processor, {ratio:.2f} × a job of the small fabric",
            f"<= {MOST_RATIO} ×",
            ratio <= MOST_RATIO,
            f"jobs.yaml with {counts[1]:,} jobs of {HOSTS_A_JOB} hosts to flows,"
            f" {large * 1e3:.2f} ms a job; small is {size_of(fabrics[0])}, {counts[0]:,} jobs",
            {"ratio": ratio, "seconds_a_job": each, "jobs": counts},
        )
    ]


def _write(path: Path, fabric: Fabric) -> int:
    """Write jobs on all hosts of a fabric, in order, and return their number."""
    hosts = [*fabric.structure.nics_of_host]
    jobs = len(hosts) // HOSTS_A_JOB
    gpus = len(fabric.structure.nics_of_host[hosts[0]])
    with path.open("w", encoding="ascii") as file:
        for job in range(jobs):
            own = ", ".join(hosts[job * HOSTS_A_JOB : (job + 1) * HOSTS_A_JOB])
            file.write(f"- {{job: j{job}, hosts: [{own}], gpus_per_host: {gpus}}}\n")
    return jobs


def _seconds(path: Path, fabric: Fabric) -> float:
    """Return the processor time from reading the file to the flows of all its jobs."""
    begin = time.process_time()
    flows_of_jobs(load_jobs(path), fabric, origin=str(path))
    return time.process_time() - begin
