"""Labs for tests: small ones, removed whatever happens."""

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
    """Skip, or fail in CI, where there is no root, no FRR, no nftables."""
    lacking = tools.missing()
    if lacking:
        missing(f"a lab: {lacking}")


def small_fabric() -> Fabric:
    """4 leaves, 2 spines, 2 hosts of one NIC on each leaf."""
    return clos(leaves=4, spines=2, nics_per_leaf=2, nics_per_host=1)


def fresh_name() -> str:
    """A lab's name that no other test has."""
    return f"test-{secrets.token_hex(3)}"


@contextmanager
def small_lab(
    *,
    programs: bool,
    rate_mbit: float = 0.0,
    fabric: Fabric | None = None,
    controller: tuple[str, ...] = (),
) -> Iterator[tuple[Lab, Programs | None]]:
    """A fabric, by default the small one, as a lab, converged and with witnesses.

    ``controller`` are further options of its controller, where it has ``programs``.
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
    """Whatever bears a lab's mark: namespaces, processes in them, its folder."""
    spaces = mark.namespaces(lab)
    found = [*spaces, *(f"process {process}" for process in mark.processes(spaces))]
    if Path(mark.FOLDER, lab).exists():
        found.append(str(mark.FOLDER / lab))
    return found
