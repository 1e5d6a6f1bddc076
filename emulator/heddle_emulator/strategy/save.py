"""Results of strategies as files: paths in the form of plan.json, figures as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.content import write_content
from heddle_controller.model.files.plan_file import save_plan
from heddle_controller.model.plan import Certificate, Paths, Plan, worst_by_tier
from heddle_emulator.strategy.carried import Carried, Outcome


class SaveFolder:
    """A folder to which the results of strategies are written, by name of the strategy."""

    def __init__(self, path: Path) -> None:
        """Create the folder.

        Raises:
            InputError: It cannot be created.
        """
        self.path, self._stems = path, dict[str, str]()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise refuse(str(path), "", f"cannot be made: {error.strerror}") from error

    def outcome(self, name: str, outcome: Outcome) -> None:
        """Write NAME.csv with a row for each flow, and NAME.json with the paths.

        Raises:
            InputError: A file cannot be written.
        """
        flows, ends = outcome.carried.flows, outcome.ends
        told = [""] * len(flows) if ends is None else [repr(end) for end in ends.tolist()]
        rows = zip(flows.ids, outcome.rates.tolist(), told, strict=True)
        self.rows(name, ("flow", "gbps", "seconds"), rows)
        self.paths(name, outcome.fabric, outcome.carried)

    def rows(self, name: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Write NAME.csv."""
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)
        write_content(self.path / f"{self._stem(name)}.csv", text.getvalue().encode())

    def paths(self, name: str, fabric: Fabric, carried: Carried) -> None:
        """Write NAME.json, unless the strategy is a limit, which has no paths."""
        if not carried.limit:
            plan = _plan(Outcome(fabric, carried))
            save_plan(plan, self.path / f"{self._stem(name)}.json")

    def _stem(self, name: str) -> str:
        """Return the name's file name without ending; it has a number if another's is the same."""
        if name not in self._stems:
            plain = "".join(one if one.isalnum() or one in "-." else "-" for one in name)
            taken, stem, number = {*self._stems.values()}, plain, 1
            while stem in taken:
                number += 1
                stem = f"{plain}-{number}"
            self._stems[name] = stem
        return self._stems[name]


def _plan(outcome: Outcome) -> Plan:
    carried, none = outcome.carried, np.empty(0, dtype=np.int64)
    empty = np.zeros(len(carried.paths) + 1, dtype=np.int64)
    paths = carried.paths
    backups = Paths(paths.flow, paths.first_qp, paths.last_qp, empty, none)
    lost = {int(row): "a QP of it gets nowhere" for row in np.flatnonzero(outcome.lost)}
    certificate = Certificate(max(worst_by_tier(outcome.fabric, outcome.loads).values(), default=0))
    return Plan(outcome.fabric, carried.flows, paths, backups, certificate, lost)
