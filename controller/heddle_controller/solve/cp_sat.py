"""CP-SAT (OR-Tools), loaded by the first programme that is put to it.

Its Python face imports pandas: most of what a controller would have to load, and few plans need it.
The compiled libraries below it take long by themselves; who needs a part of them loads it where it
is used.
Programmes are solved by one worker within a budget of deterministic time, so that equal input
gives equal output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


def load_cp_sat() -> None:
    """Load it now, where nobody waits for that."""
    new_model()


def new_model() -> cp_model.CpModel:
    """An empty programme."""
    from ortools.sat.python import cp_model  # noqa: PLC0415 - see above

    return cp_model.CpModel()


def new_solver(effort: float) -> cp_model.CpSolver:
    """A solver that ends after so many seconds of deterministic time."""
    from ortools.sat.python import cp_model  # noqa: PLC0415 - see above

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = effort
    return solver


def finds(solver: cp_model.CpSolver, model: cp_model.CpModel) -> bool:
    """Solve; whether that gives values for all variables, the best ones or not."""
    from ortools.sat.python import cp_model  # noqa: PLC0415 - see above

    return solver.solve(model) in {cp_model.OPTIMAL, cp_model.FEASIBLE}
