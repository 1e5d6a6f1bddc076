"""Small labs for tests, which are removed however the test ends."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heddle_controller.model.fabric import Fabric
from heddle_emulator.netns import mark, tools, witness
from heddle_emulator.netns.lab import Lab, LabOptions
from heddle_emulator.netns.layout import lay_out
from heddle_emulator.netns.programs import Programs
from heddle_emulator.netns.up import bring_up
from heddle_emulator.topology import clos
from tests.support.needs import missing


def require_lab() -> None:
    """Skip the test, or fail it in CI, where root, FRR or nftables is missing."""
    lacking = tools.missing()
    if lacking:
        missing(f"a lab: {lacking}")


def small_fabric() -> Fabric:
    """Return 4 leaves and 2 spines; each leaf has 2 hosts of one NIC."""
    return clos(leaves=4, spines=2, nics_per_leaf=2, nics_per_host=1)


def fresh_name() -> str:
    """Return a lab name that no other test uses."""
    return f"test-{secrets.token_hex(3)}"


@contextmanager
def small_lab(
    *,
    programs: bool,
    rate_mbit: float = 0.0,
    fabric: Fabric | None = None,
    controller: tuple[str, ...] = (),
) -> Iterator[tuple[Lab, Programs | None]]:
    """Run a lab whose routing has converged and whose switches count packets.

    Args:
        programs: Whether a controller and agents run in it.
        rate_mbit: Speed of its cables, as in ``LabOptions``.
        fabric: By default the small one.
        controller: Further options of the controller, if there is one.
    """
    require_lab()
    options = LabOptions(rate_mbit=rate_mbit, seed=1)
    with Lab(mark.claim(fresh_name()), lay_out(fabric or small_fabric()), options) as lab:
        running = Programs(lab, controller=controller) if programs else None
        try:
            bring_up(lab, running)
            witness.place(lab)
            yield lab, running
        finally:
            if running is not None:
                running.close()


def residue(lab: str) -> list[str]:
    """Return all that is left of a lab: its namespaces, processes in them, and its folder."""
    spaces = mark.namespaces(lab)
    found = [*spaces, *(f"process {process}" for process in mark.processes(spaces))]
    if Path(mark.FOLDER, lab).exists():
        found.append(str(mark.FOLDER / lab))
    return found
