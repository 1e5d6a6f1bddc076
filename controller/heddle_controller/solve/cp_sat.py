"""CP-SAT (OR-Tools), loaded when the first programme is made.

Its Python interface imports pandas, which is most of what a controller would have to load, and few
plans need it. The compiled libraries below it also take long to load, so modules that need only a
part of OR-Tools load that part where they use it.

Programmes are solved by one worker within a budget of deterministic time, so that equal input gives
equal output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ortools.sat.python import cp_model


def load_cp_sat() -> None:
    """Load CP-SAT now, at a time when nobody waits for it."""
    new_model()


def new_model() -> cp_model.CpModel:
    """Return an empty programme."""
    from ortools.sat.python import cp_model  # noqa: PLC0415 - see above

    return cp_model.CpModel()


def new_solver(effort: float) -> cp_model.CpSolver:
    """Return a solver that ends after ``effort`` seconds of deterministic time."""
    from ortools.sat.python import cp_model  # noqa: PLC0415 - see above

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = effort
    return solver


def finds(solver: cp_model.CpSolver, model: cp_model.CpModel) -> bool:
    """Solve, and return whether that gives values for all variables, optimal or not."""
    from ortools.sat.python import cp_model  # noqa: PLC0415 - see above

    return solver.solve(model) in {cp_model.OPTIMAL, cp_model.FEASIBLE}
