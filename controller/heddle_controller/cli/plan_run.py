"""One run of ``heddle plan``: load, plan or repair, check, write.

It is separate from the command, so that the work can be read apart from its options and output.
Clocks are read here and nowhere below. The planner is imported only in functions that plan, so that
other commands do not wait for its libraries.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from heddle.text import similar, some_of
from heddle_controller.model.demand import resolve
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import load_fabric_file
from heddle_controller.model.files.flows_file import load_demands
from heddle_controller.model.files.plan_file import (
    certificate_record,
    load_plan,
    save_plan,
    unrouted_records,
)
from heddle_controller.model.files.port_paths_file import load_port_paths
from heddle_controller.model.flows import Flows, concatenate
from heddle_controller.model.job import Job
from heddle_controller.model.plan import Objective, Plan
from heddle_controller.plan.diff import changed_flows
from heddle_controller.plan.eos import eos_texts
from heddle_controller.plan.limits import exposed_flows, unsplit_flows
from heddle_controller.plan.sharing import turns_in
from heddle_controller.plan.verify import verify_plan
from heddle_controller.traffic.jobs import flows_of_jobs
from heddle_controller.traffic.jobs_file import load_jobs

if TYPE_CHECKING:
    from heddle_controller.solve import Options, Repairer
from collections.abc import Mapping
from difflib import unified_diff
from urllib.parse import quote

from heddle_controller.model.errors import MAX_PROBLEMS, InputError, Problem
from heddle_controller.model.fabric import State
from heddle_controller.model.files.content import read_text, write_content


@dataclass(frozen=True, slots=True)
class Losses:
    """Rows of links and of nodes that are down."""

    links: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()

    def applied(self, fabric: Fabric) -> Fabric:
        """Return the fabric with these links and nodes down."""
        lost = fabric.with_links(dict.fromkeys(self.links, State.DOWN))
        return lost.with_nodes(dict.fromkeys(self.nodes, State.DOWN))


def losses_of(fabric: Fabric, texts: Sequence[str], origin: str) -> Losses:
    """Return the links and nodes that ``A,B``, ``A,B,KEY`` and ``SWITCH`` name.

    ``A,B`` means every link between the two.

    Raises:
        InputError: A node, link or key is unknown; similar names are suggested. ``origin``, the
            fabric's file, is its source.
    """
    links: list[int] = []
    nodes: list[int] = []
    problems: list[Problem] = []
    for text in texts:
        if text in fabric.structure.index:
            nodes.append(fabric.structure.index[text])
            continue
        if named := fabric.links_named(text):
            links += named
        else:
            problems.append(Problem(f"--down {text}", _fault(fabric, text)))
    if problems:
        raise InputError(origin, *problems[:MAX_PROBLEMS])
    return Losses(tuple(links), tuple(nodes))


def _fault(fabric: Fabric, text: str) -> str:
    """Return why a text names no link."""
    parts = text.split(",")
    if len(parts) == 1:
        return _unknown(fabric, text)
    if len(parts) not in (2, 3) or not all(parts):
        return "write A,B or A,B,KEY for a link, or a switch's id"
    for node in parts[:2]:
        if node not in fabric.structure.index:
            return _unknown(fabric, node)
    a, b, *key = parts
    between = fabric.find_links(a, b)
    if not between:
        return f"no link joins {a} and {b}; {a} has links to {some_of(_neighbours(fabric, a))}"
    keys = [str(fabric.structure.links.key[row]) for row in between]
    return f"{a} and {b} have no link with key {key[0]}; there is {some_of(keys)}"


def _unknown(fabric: Fabric, node: str) -> str:
    close = similar(node, fabric.structure.nodes.ids, 5)
    hint = f"did you mean {some_of(close)}?" if close else "no id is like it"
    return f"{node!r} is not a node of the fabric; {hint}"


def _neighbours(fabric: Fabric, node: str) -> list[str]:
    structure = fabric.structure
    return [structure.nodes.ids[row] for row in structure.neighbours(structure.index[node])]


def _differences(texts: Mapping[str, str], folder: Path) -> dict[Path, str]:
    """Return what each text changes in its file in a folder, which is made if need be.

    Raises:
        InputError: The folder cannot be made, or a file cannot be read.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refuse(str(folder), "", f"cannot be made: {error.strerror or error}") from error
    found = {}
    for switch, text in texts.items():
        path = folder / f"{quote(switch, safe='')}.eos"
        before = read_text(path, "text for a switch") if path.exists() else ""
        lines = before.splitlines(keepends=True), text.splitlines(keepends=True)
        found[path] = "".join(unified_diff(*lines, f"{path.name}, before", path.name))
    return found


def _write_texts(texts: Mapping[str, str], differences: Mapping[Path, str]) -> list[str]:
    """Write SWITCH.eos for each switch, and its differences from before to SWITCH.eos.diff.

    Returns the switches whose text has changed.

    Raises:
        InputError: A file cannot be written.
    """
    changed = []
    for (switch, text), (path, told) in zip(texts.items(), differences.items(), strict=True):
        write_content(path.with_name(f"{path.name}.diff"), told.encode())
        write_content(path, text.encode())
        if told:
            changed.append(switch)
    return changed


WORTH_MOVING = 0.1
"""A plan made anew replaces a repaired one only if it is better by this share, because it moves
more flows."""

Tell = Callable[[str], None]
"""Is called with the name of each step that begins."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What the user asked for; at least one of ``flows`` and ``jobs`` is given."""

    fabric: Path
    flows: Path | None = None
    jobs: Path | None = None
    qps: int | None = None
    down: tuple[str, ...] = ()
    previous: Path | None = None
    port_paths: Path | None = None
    """File with the known paths of source ports, for fabrics whose switches hash."""
    time_limit: float | None = None
    objective: Objective = "headroom"
    protect: Literal["link", "switch", "none"] = "link"
    out: Path | None = None
    eos: Path | None = None
    """Folder for traffic policies of Arista switches, one file per switch."""


@dataclass(frozen=True, slots=True)
class CheckedPlan:
    """A plan that passed verification."""

    plan: Plan
    changed: int = 0
    """Number of flows whose path moved; 0 without a previous plan."""
    timing: dict[str, float] = field(default_factory=dict)
    """Seconds of each part of the run."""
    rewritten: list[str] | None = None
    """Switches whose text changed; None if no text was asked for."""

    def unsplit(self) -> list[str]:
        """Return flows over over-full links that cannot be split, as they have one QP."""
        return [self.plan.flows.ids[row] for row in unsplit_flows(self.plan).tolist()]

    def exposed(self) -> list[str]:
        """Return flows that cross no over-full link but may be held up by its PFC pauses."""
        return [self.plan.flows.ids[row] for row in exposed_flows(self.plan).tolist()]

    def unprotected(self) -> list[str]:
        """Return flows that a single loss may stop, because no switch has a backup for them.

        The list is empty if no protection was asked for, or if no link joins two switches.
        """
        from heddle_controller.solve import unprotected_flows  # noqa: PLC0415 - see above

        plan = self.plan
        if not plan.certificate.after_loss:
            return []
        return [plan.flows.ids[row] for row in unprotected_flows(plan).tolist()]

    def record(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        plan = self.plan
        return {
            "certificate": certificate_record(plan.certificate, plan.fabric),
            "timing": self.timing,
            "changed": self.changed,
            "flows": len(plan.flows),
            "unrouted": unrouted_records(plan),
            "notes": list(plan.notes),
            "exposed": self.exposed(),
            "unprotected": self.unprotected(),
            **({} if self.rewritten is None else {"rewritten": self.rewritten}),
        }


def run(request: PlanRequest, tell: Tell, note: Tell) -> CheckedPlan:
    """Carry out a request. Nothing is written unless the plan passes verification.

    ``tell`` hears of each step, and ``note`` of what was ignored in the files.

    Raises:
        InputError: An input is faulty, or the plan cannot be written.
        PlanInvalid: The planner made a plan that must not be used.
    """
    with _no_collection():
        return _run(request, tell, note)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Switch the garbage collector off: planning makes no reference cycles, and it takes long."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _run(request: PlanRequest, tell: Tell, note: Tell) -> CheckedPlan:
    from heddle_controller.solve import (  # noqa: PLC0415 - see above
        Options,
        Repairer,
    )

    tell("loading")
    start = time.perf_counter()
    fabric = load_fabric_file(request.fabric, note=note)
    losses = losses_of(fabric, request.down, str(request.fabric))
    jobs = load_jobs(request.jobs) if request.jobs else ()
    flows = _flows(request, fabric, jobs, note)
    known = load_port_paths(request.port_paths, fabric) if request.port_paths else None
    if fabric.structure.hashes.any():
        if request.previous:
            reason = "is ecmp for some switches: such plans are made anew, leave out --previous"
            raise refuse(str(request.fabric), "forwarding", reason)
        fabric = replace(fabric, port_paths=known)
    elif known is not None:
        reason = 'is "ecmp" for no switch: say of which nodes nobody programs them'
        raise refuse(str(request.fabric), "forwarding", reason)
    previous = load_plan(request.previous, fabric, flows) if request.previous else None
    options = Options(objective=request.objective, time_limit_seconds=request.time_limit)
    repairer = Repairer(previous, options) if previous else None
    timing = {"load_seconds": time.perf_counter() - start}
    tell(f"planning {len(flows)} flows")
    plan = _planned(fabric, losses, flows, repairer or options, timing)
    tell("protecting the plan")
    plan = _protected(plan, request, timing)
    if request.jobs:
        start = time.perf_counter()
        iterations = [one for job in jobs if (one := job.iteration) is not None]
        turns = turns_in(plan, iterations)
        plan = replace(plan, certificate=replace(plan.certificate, turns=turns))
        timing["turns_seconds"] = time.perf_counter() - start
    tell("checking the plan")
    start = time.perf_counter()
    verify_plan(plan)
    changed = len(changed_flows(previous, plan)) if previous else 0
    timing["verify_seconds"] = time.perf_counter() - start
    # All that may be refused comes before the first file is written.
    texts = eos_texts(plan, str(request.fabric)) if request.eos else {}
    differences = _differences(texts, request.eos) if request.eos else {}
    if request.out:
        tell(f"writing {request.out}")
        timing["write_seconds"] = save_plan(plan, request.out, timing=timing, changed=changed)
    rewritten = None
    if request.eos:
        tell(f"writing text for switches to {request.eos}")
        rewritten = _write_texts(texts, differences)
    return CheckedPlan(plan, changed, timing, rewritten)


def _protected(plan: Plan, request: PlanRequest, timing: dict[str, float]) -> Plan:
    """Return the plan with the backups asked for, and with the effects of single losses."""
    from heddle_controller.solve import protected, without_backups  # noqa: PLC0415 - see above

    start = time.perf_counter()
    kind = request.protect
    plan = without_backups(plan) if kind == "none" else protected(plan, kind)
    timing["protect_seconds"] = time.perf_counter() - start
    return plan


def _flows(request: PlanRequest, fabric: Fabric, jobs: Sequence[Job], note: Tell) -> Flows:
    """Return the flows of the flow file, then those of the jobs."""
    parts = []
    if request.flows:
        demands = load_demands(request.flows, note=note)
        parts.append(resolve(demands, fabric, origin=str(request.flows)))
    if request.jobs:
        parts.append(flows_of_jobs(jobs, fabric, origin=str(request.jobs)))
    flows = concatenate(parts)
    if request.flows and len(set(flows.ids)) < len(flows):
        twice = next(iter({*parts[0].ids} & {*parts[1].ids}))
        reason = f"{request.jobs} makes a flow of the same id; rename this one"
        raise refuse(str(request.flows), f"flow {twice!r}", reason)
    return flows if request.qps is None else flows.with_qps(request.qps)


def _planned(
    fabric: Fabric,
    losses: Losses,
    flows: Flows,
    planner: Repairer | Options,
    timing: dict[str, float],
) -> Plan:
    """Return the plan; ``solve_seconds`` runs from the known losses to the plan in memory."""
    from heddle_controller.solve import Options, plan_anew  # noqa: PLC0415 - see above

    start = time.perf_counter()
    present = losses.applied(fabric)
    if isinstance(planner, Options):
        plan = plan_anew(present, flows, options=planner)
    else:
        plan = planner.repair(present, flows)
        timing["repair_seconds"] = took = time.perf_counter() - start
        limit = planner.options.time_limit_seconds
        left = None if limit is None else max(0.0, limit - took)
        plan = planner.restored(WORTH_MOVING, replace(planner.options, time_limit_seconds=left))
    timing["solve_seconds"] = time.perf_counter() - start
    return plan
