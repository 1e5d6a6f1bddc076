"""The linear relaxation: how far any splitting of flows could spread the load.

Flows between the same terminals are one commodity; a commodity divides itself
freely over its candidate paths. One variable a tier stands for its worst
utilisation, and the sum of these, each in proportion to its proven least, is
made small: so a tapered core does not drown what happens beneath it. Jobs of
several phases get one more variable an arc, which is at least each phase's load.

Loads far from those that links carry are told in a unit of their own, the power of two
next to the greatest proven least. PDLP would take long over them, and its dual, which
counts by ratio alone, needs no telling back.

PDLP (a first-order method, OR-Tools) solves it as far as asked, by that of its interfaces
which lets other threads run meanwhile. Its answer is
never trusted as a bound; ``prices`` turns its dual into one that holds whatever
the solver's accuracy, because any prices of arcs prove a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from ortools.linear_solver.python import model_builder_helper as helper
from scipy.sparse import csr_matrix

from heddle_controller.model.fabric import Floats
from heddle_controller.solve.commodities import Commodities
from heddle_controller.solve.network import Network

ACCURACY = 1e-4
"""Relative optimality asked of PDLP: a hundredth of what counts as met."""

PARAMETERS = f"""termination_criteria {{ simple_optimality_criteria {{
    eps_optimal_relative: {ACCURACY} eps_optimal_absolute: {ACCURACY / 100}
}} }}"""

FAR = 1000.0
"""Factor from a link's speed beyond which loads get a unit of their own."""


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """A solution of the relaxation."""

    shares: Floats
    """Part of its commodity on each candidate path, shape (paths,)."""
    prices: Floats
    """Price of each use of an arc (``Commodities.use_arc``), at least 0.

    For any job the prices of its phases on an arc add up to at most the arc's.
    """
    arc_prices: Floats
    """Price of each arc and the padding, at least 0, shape (arcs + 1,)."""


def relax(
    network: Network, commodities: Commodities, scale: Floats, seconds: float | None
) -> Relaxation:
    """Solves the relaxation. ``scale`` is each tier's proven least, shape (tiers,)."""
    return _Programme(network, commodities, scale).solve(seconds)


class _Programme:
    """Columns: paths, then phased loads, then tiers. Rows: commodities, arcs, phases."""

    def __init__(self, network: Network, commodities: Commodities, scale: Floats) -> None:
        self.commodities = commodities
        self.network = network
        use_arc = commodities.use_arc
        self.arcs, self.arc_row = np.unique(use_arc, return_inverse=True)
        self.tier = network.fabric.structure.tier_of_arc[self.arcs]
        most = float(scale.max(initial=0.0))
        unit = 1.0 if 1 / FAR <= most <= FAR else two_to(most)
        self.scale = np.where(scale > 0, scale, most or 1.0) / unit
        per_gbps = network.per_gbps[use_arc] / unit
        self.weight = commodities.demand[commodities.use_commodity] * per_gbps
        self._phases()

    def _phases(self) -> None:
        """Numbers the pairs of job and arc, and of phase and arc, that need a row."""
        commodities = self.commodities
        self.phased = np.flatnonzero(commodities.use_job >= 0)
        arcs, jobs = self.arc_row[self.phased], commodities.use_job[self.phased]
        width = len(self.arcs)
        self.job_arcs, self.job_arc = np.unique(jobs * width + arcs, return_inverse=True)
        phase_code = commodities.use_group[self.phased] * width + arcs
        self.phase_arcs, index, self.phase_arc = np.unique(
            phase_code, return_index=True, return_inverse=True
        )
        self.job_of_phase = self.job_arc[index]

    def solve(self, seconds: float | None) -> Relaxation:
        """Hands the matrix to PDLP."""
        commodities = self.commodities
        counts = (commodities.path_count, len(self.job_arcs), len(self.scale))
        rows = (commodities.count, len(self.arcs), len(self.phase_arcs))
        ones, rest = np.ones(rows[0]), sum(rows[1:])
        programme: Any = helper.ModelBuilderHelper()
        programme.fill_model_from_sparse_data(
            np.zeros(sum(counts)),
            np.full(sum(counts), np.inf),
            np.concatenate([np.zeros(sum(counts[:2])), 1 / self.scale]),
            np.concatenate([ones, np.full(rest, -np.inf)]),
            np.concatenate([ones, np.zeros(rest)]),
            self._matrix(counts, rows),
        )
        solver: Any = helper.ModelSolverHelper("PDLP")
        solver.set_solver_specific_parameters(PARAMETERS)
        if seconds is not None:
            solver.set_time_limit_in_seconds(max(seconds, 1e-3))
        solver.solve(programme)
        return self._read(np.array(solver.variable_values()), np.array(solver.dual_values()))

    def _matrix(self, counts: tuple[int, int, int], rows: tuple[int, int, int]) -> csr_matrix:
        commodities = self.commodities
        paths, jobs, _ = counts
        commodity, arc, _ = rows
        linear = np.flatnonzero(commodities.use_job < 0)
        job_arc_row = self.job_arcs % len(self.arcs)
        entries = [
            # Each commodity is carried whole.
            (commodities.path_commodity, np.arange(paths), np.ones(paths)),
            # Linear loads and the worst phases of jobs, at most the tier's worst.
            (commodity + self.arc_row[linear], commodities.use_path[linear], self.weight[linear]),
            (commodity + job_arc_row, paths + np.arange(jobs), np.ones(jobs)),
            (commodity + np.arange(arc), paths + jobs + self.tier, -np.ones(arc)),
            # Each phase, at most the job's worst.
            (
                commodity + arc + self.phase_arc,
                commodities.use_path[self.phased],
                self.weight[self.phased],
            ),
            (
                commodity + arc + np.arange(len(self.phase_arcs)),
                paths + self.job_of_phase,
                -np.ones(len(self.phase_arcs)),
            ),
        ]
        row, column, value = (np.concatenate(part) for part in zip(*entries, strict=True))
        return csr_matrix((value, (row, column)), shape=(sum(rows), sum(counts)))

    def _read(self, primal: Floats, dual: Floats) -> Relaxation:
        commodities, network = self.commodities, self.network
        # Cut short by a time limit, PDLP may have nothing to say yet.
        primal, dual = np.nan_to_num(primal), np.nan_to_num(dual)
        shares = np.maximum(primal[: commodities.path_count], 0.0)
        # PDLP's dual is that of "less or equal" rows: not above 0.
        arc_dual = np.maximum(-dual[commodities.count :][: len(self.arcs)], 0.0)
        phase_dual = np.maximum(-dual[commodities.count + len(self.arcs) :], 0.0)
        arc_prices = np.zeros(network.arc_count + 1)
        arc_prices[self.arcs] = arc_dual
        prices = arc_dual[self.arc_row]
        if len(self.phased):
            prices[self.phased] = self._phase_prices(arc_dual, phase_dual)[self.phase_arc]
        return Relaxation(shares, prices, arc_prices)

    def _phase_prices(self, arc_dual: Floats, phase_dual: Floats) -> Floats:
        """Prices of phases, shrunk where those of one job exceed the arc's."""
        total = np.bincount(self.job_of_phase, weights=phase_dual, minlength=len(self.job_arcs))
        limit = arc_dual[self.job_arcs % len(self.arcs)]
        shrink = np.minimum(1.0, limit / np.maximum(total, 1e-300))
        result: Floats = phase_dual * shrink[self.job_of_phase]
        return result


def two_to(size: float) -> float:
    """The least power of two that is not below a size; 1 for none.

    To divide by one rounds nothing.
    """
    fraction, exponent = math.frexp(size)
    return math.ldexp(1.0, exponent - (fraction == 0.5)) if size > 0 else 1.0  # noqa: PLR2004
