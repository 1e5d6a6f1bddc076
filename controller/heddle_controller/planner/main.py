"""The planning process: ``main SOCKET SECONDS OBJECTIVE PARENT``, as a module.

It is started by a controller, whose process id is PARENT and which it does not outlive, reads
questions from the socket with that number, and answers one after another. SECONDS is the time limit
of one run of the solver, OBJECTIVE what more entries are worth. It ignores signals that a whole
group of processes is ended by: the controller says when it is over.

The engine that plans with the solver: only a planning process loads it.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

from heddle_controller.model import graphs
from heddle_controller.model.plan import Objective
from heddle_controller.plan.programs import entries_after
from heddle_controller.plan.verify import verify_plan
from heddle_controller.planner.core import PlanningCore
from heddle_controller.planner.mirror import FabricMirror
from heddle_controller.planner.planning import Engine
from heddle_controller.planner.port import PlanningFailed
from heddle_controller.planner.protocol import (
    Failed,
    Question,
    Unpacker,
    answered,
    packed,
    received,
)
from heddle_controller.solve import (
    Options,
    better_backups,
    cp_sat,
    plan_anew,
    prove,
    repairer_of,
)
from heddle_controller.traffic.jobs import flows_of_job

PROOF_SECONDS = 10.0
"""Of looking for a better bound: nobody waits for it, but other questions may."""


def planning_engine(solve_seconds: float | None, objective: Objective = "headroom") -> Engine:
    """The functions that plan, with a time limit for each run of the solver."""
    options = Options(objective=objective, time_limit_seconds=solve_seconds)
    return Engine(
        flows_of_job=flows_of_job,
        solve=partial(plan_anew, options=options),
        repairer=partial(repairer_of, options=options),
        back=better_backups,
        prove=partial(prove, options=Options(time_limit_seconds=PROOF_SECONDS)),
        verify=verify_plan,
        entries_of=entries_after,
    )


PR_SET_PDEATHSIG = 1
QUIET = 10.0
"""Seconds without a question, after which it loads what plans may need and has not been needed."""
OOM_SCORE = 500
"""Where memory runs out, the kernel is to choose this process and not the controller."""


def main() -> None:
    """Answer until the controller is gone."""
    number, seconds, parent = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[4])
    objective: Objective = "economy" if sys.argv[3] == "economy" else "headroom"
    _die_with(parent)
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.SIG_IGN)
    with socket.socket(fileno=number) as end:
        _serve(end, PlanningCore(planning_engine(seconds, objective)))


def _die_with(parent: int) -> None:
    """Have the kernel end this process with the controller, even in the middle of a plan."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before that
        sys.exit(0)
    try:
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE), encoding="ascii")
    except OSError:  # a wish, and no more
        return


def _serve(end: socket.socket, core: PlanningCore) -> None:
    unpacker, mirrors, planned = Unpacker(), dict[str, FabricMirror](), False
    heard = select.poll()  # select.select takes no number above 1,023
    heard.register(end, select.POLLIN)
    while True:
        if planned and not heard.poll(QUIET * 1000):
            graphs.load_graphs()
            cp_sat.load_cp_sat()
            planned = False
        if not received(end, unpacker):
            return
        found = unpacker.message()
        if found is not None:
            question = Question(*found[0])
            mirror = mirrors.setdefault(question.fabric, FabricMirror())
            _send(end, _answer(core, mirror, question))
            planned = planned or question.method in {"plan", "prepare"}
            if question.method == "plan":
                core.make_ready(question.fabric)  # nobody waits for that


def _answer(core: PlanningCore, mirror: FabricMirror, question: Question) -> Any:  # noqa: ANN401 - packed
    try:
        return answered(core, mirror, question)
    except PlanningFailed as error:  # anything else ends the process, and another takes its place
        return Failed(str(error))


def _send(end: socket.socket, message: object) -> None:
    data, file = packed(message)
    sent = socket.send_fds(end, [data], [] if file is None else [file])
    if file is not None:
        os.close(file)
    end.sendall(memoryview(data)[sent:])


if __name__ == "__main__":
    main()
