"""Which modules a command loads before it does anything, because operators wait for that."""

from __future__ import annotations

import subprocess
import sys

from heddle_controller.cli.main import COMMANDS

HEAVY = {"networkx", "ortools", "pandas", "pydantic", "redis", "rich", "scipy"}
"""Packages for planning, storing and drawing, which asking a controller does not need."""
LOADED = """
import sys
from heddle_controller.cli.main import main
for words in sys.argv[1:]:
    try:
        main(words.split())
    except SystemExit as end:
        assert not end.code, words
print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""
"""Runs commands, one after another, and prints the packages that they have loaded."""


def loaded(*commands: str) -> tuple[str, set[str]]:
    """Return what commands print, run in one fresh process, and the packages that they load."""
    run = [sys.executable, "-c", LOADED, *commands]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    return done.stdout, set(done.stderr.split())


def test_a_command_loads_nothing_that_only_others_need() -> None:
    """Commands that ask a controller start without the planner, a database or coloured tables."""
    asking = ("audit", "demand", "doctor", "drain", "job", "overlay", "show", "slurm")
    said, packages = loaded(*(f"--server 127.0.0.1:1 {command} --help" for command in asking))
    assert said.count("Usage:") == len(asking)
    assert packages & HEAVY == set()


def test_commands_that_compute_nothing_do_not_wait_for_numpy() -> None:
    """What Slurm runs before and after every job starts without numpy, and so do most others.

    They also leave out what only faults, documents, input files and a configuration file need.
    """
    jobs = ("delete", "list", "ports", "release", "replace", "reservations", "reserve", "resize")
    light = [
        *("slurm prolog", "slurm epilog", "drain", "undrain", "overlay", "doctor", "history"),
        *(f"job {command}" for command in (*jobs, "resume", "show", "suspend", "watch")),
        *(f"fabric {command}" for command in ("delete", "link", "list", "show", "switch", "watch")),
        *(f"plan {command}" for command in ("diff", "release", "rollback")),
        *(f"show {command}" for command in ("explain", "links", "plan", "routes")),
        *(f"demand {command}" for command in ("delete", "list", "rates", "show")),
    ]
    said, packages = loaded(*(f"{command} --help" for command in light))
    assert said.count("Usage:") == len(light)
    seldom = {"difflib", "orjson", "statistics", "tomllib", "yaml"}
    assert packages & (HEAVY | {"numpy"} | seldom) == set()


def test_help_names_every_command_without_the_planner() -> None:
    """The help has a line for each command, and loads no solver."""
    shown, packages = loaded("--help")
    said = shown.partition("Commands:\n")[2].partition("\n\n")[0]
    told = [
        line.split()[0] for line in said.splitlines() if line.startswith("  ") and line[2] != " "
    ]
    assert told == sorted(COMMANDS)
    assert packages & {"networkx", "ortools", "pandas", "scipy"} == set()


def test_a_controller_starts_without_what_only_hard_plans_need() -> None:
    """The controller loads no solver, and no client of a store that it does not use.

    Its planning processes load the planner, but not OR-Tools with pandas, and not scipy.
    """
    script = (
        "import sys, heddle_controller.app;"
        "print(*sorted({'networkx', 'ortools', 'pandas', 'redis', 'scipy'} & set(sys.modules)));"
        "import heddle_controller.planner.core;"
        "print(*sorted({'pandas', 'ortools', 'scipy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


PLANNED = """
import sys
from heddle_controller.model.job import Collective, Group, Job, Operation, Parallelism
from heddle_controller.planner.core import planning_engine
from heddle_controller.traffic.jobs import flows_of_jobs
from heddle_emulator.topology import three_tier

fabric = three_tier(zones=2, leaves=4, spines=2, nics_per_leaf=8, cores=2, taper=2.0)
collective = Collective(Operation.ALL_REDUCE, Group.DP, 1 << 30)
job = Job("j1", fabric.structure.host_names[:4], 8, Parallelism(tp=8), (collective,))
plan = planning_engine(30.0).solve(fabric, flows_of_jobs((job,), fabric))
print(len(plan.paths) > 0, *({"ortools", "scipy"} & set(sys.modules)))
"""


def test_a_first_plan_needs_no_library_of_solvers() -> None:
    """A ring over hosts of one zone is planned without loading OR-Tools or scipy."""
    done = subprocess.run(
        [sys.executable, "-c", PLANNED], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["True"], done.stderr
