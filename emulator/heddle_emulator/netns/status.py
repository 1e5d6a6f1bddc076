"""How a lab stands, read from the kernel: what runs, and what BGP lacks."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.files.fabric_file import load_fabric_file
from heddle_emulator.netns import LabError, mark, tools
from heddle_emulator.netns.converge import lacks
from heddle_emulator.netns.frr import Bfd
from heddle_emulator.netns.lab import Lab, LabOptions
from heddle_emulator.netns.layout import MGMT, Cable, lay_out


@dataclass(frozen=True, slots=True)
class Status:
    """One lab."""

    name: str
    switches: int
    hosts: int
    cables: int
    programs: Counter[str]
    """Running processes by program: zebra, bgpd, bfdd, agent, controller, other."""
    cut: tuple[str, ...]
    """Cables without carrier."""
    lacking: tuple[str, ...]
    """Ways that BGP ought to have given and has not, in words."""
    agents: bool
    """Whether it was built with agents and a controller."""

    @property
    def faults(self) -> list[str]:
        """What ought to run and does not, in words."""
        wanted = {"zebra": self.switches, "bgpd": self.switches}
        if self.agents:
            wanted |= {"agent": self.switches, "controller": 1}
        return [
            f"{count - self.programs[program]} of {count} {program} do not run"
            for program, count in wanted.items()
            if self.programs[program] < count
        ]


def reopen(name: str) -> Lab:
    """A lab that ``lab up`` has built, as an object to look at it and change it.

    Raises:
        LabError: there is none of that name.
    """
    state = mark.read_state(mark.check_name(name))
    if state is None:
        known = ", ".join(lab for lab in mark.labs() if mark.read_state(lab)) or "none"
        raise LabError(f"lab {name} is not up (up: {known}); start it with 'lab up --name {name}'")
    bfd = Bfd(state["bfd_ms"]) if state["bfd_ms"] else None
    options = LabOptions(state["rate_mbit"], bfd, state["seed"])
    fabric = load_fabric_file(mark.FOLDER / name / "fabric.json")
    return Lab(mark.Claim(name), lay_out(fabric), options)


def keep(lab: Lab, *, agents: bool) -> None:
    """Say that a finished lab is to stay when its builder ends."""
    options = lab.options
    bfd = options.bfd.milliseconds if options.bfd else 0
    state = {"rate_mbit": options.rate_mbit, "bfd_ms": bfd, "seed": options.seed, "agents": agents}
    lab.claim.write_state(state)
    lab.claim.release()


def status(lab: Lab) -> Status:
    """How a lab stands now."""
    state, layout = mark.read_state(lab.name) or {}, lab.layout
    fabric = present(lab)
    return Status(
        name=lab.name,
        switches=len(layout.switches),
        hosts=len(layout.hosts),
        cables=len(layout.cables),
        programs=_programs(lab),
        cut=tuple(fabric.link_name(cable.link) for cable in cut_cables(lab)),
        lacking=tuple(str(lack) for lack in lacks(lab, fabric)),
        agents=bool(state.get("agents")),
    )


def present(lab: Lab) -> Fabric:
    """The lab's fabric with its links as the kernel has them."""
    states = {cable.link: State.UP for cable in lab.layout.cables}
    states |= {cable.link: State.DOWN for cable in cut_cables(lab)}
    return lab.layout.fabric.with_links(states)


def cut_cables(lab: Lab) -> list[Cable]:
    """Cables with an end that has no carrier."""
    down = {
        (node, line.split(":")[1].split("@")[0].strip())
        for node in (*lab.layout.switches, *lab.layout.hosts)
        for line in tools.run_program(
            ["ip", "-netns", lab.spaces[node], "-oneline", "link"]
        ).splitlines()
        if "LOWER_UP" not in line
    }
    return [
        cable
        for cable in lab.layout.cables
        if any((port.namespace, port.name) in down for port in cable.ends)
    ]


def _programs(lab: Lab) -> Counter[str]:
    found: Counter[str] = Counter()
    controllers = lab.spaces[MGMT]
    for process, space in mark.processes(lab.spaces.values()).items():
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{process}/comm").read_text().strip()
            if name.startswith("agent "):
                name = "agent"
            elif space == controllers and name.startswith("heddle-control"):
                name = "controller"
            elif name not in {"zebra", "bgpd", "bfdd"}:
                name = "other"
            found[name] += 1
    return found
