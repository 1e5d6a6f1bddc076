"""A lab: real kernels and FRR for every switch of a fabric, on one machine.

Built in the order of what stands on what: namespaces, settings, cables, addresses,
speeds, then FRR. Every step waits for the one before and none for a timer.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_emulator.netns import frr, mark, plumbing, tools
from heddle_emulator.netns.kernel import LinkSwitch
from heddle_emulator.netns.layout import MGMT, Layout, Port, down_links
from heddle_emulator.netns.needs import FRR

FASTEST_MBIT = 100.0


@dataclass(frozen=True, slots=True)
class LabOptions:
    """How a lab differs from another of the same fabric."""

    rate_mbit: float = FASTEST_MBIT
    """Speed of the fabric's fastest cable in Mbit/s, the others in proportion; 0 is unlimited."""
    bfd: frr.Bfd | None = None
    """BFD between switches; none by default."""
    seed: int = 0
    """Draws the switches' ECMP hashes."""


Telling = Callable[[str], None]


def silent(_: str) -> None:
    """Report to nobody."""


class Lab:
    """One lab. A ``with`` removes it at its end, whatever happened inside."""

    def __init__(
        self, claim: mark.Claim, layout: Layout, options: LabOptions | None = None
    ) -> None:
        self.claim, self.layout = claim, layout
        self.options = options or LabOptions()
        self.spaces = {node: mark.namespace(claim.lab, node) for node in layout.namespaces}
        self._switches: dict[str, LinkSwitch] = {}

    @property
    def name(self) -> str:
        """The lab's name."""
        return self.claim.lab

    @property
    def folder(self) -> Path:
        """Configurations, logs and state."""
        return self.claim.folder

    @property
    def mbit_per_gbps(self) -> float:
        """Mbit/s of the lab for each Gbit/s of the fabric; 0 where speed is not limited."""
        fastest = max((cable.gbps for cable in self.layout.cables), default=1.0)
        return self.options.rate_mbit / fastest

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def build(self, report: Telling = silent) -> None:
        """Namespaces and cables, as yet without routes between switches.

        Raises:
            LabError: something cannot be had.
        """
        layout, spaces = self.layout, self.spaces
        report(f"{len(spaces)} namespaces, {len(layout.cables)} cables")
        tools.run_program(
            ["ip", "-batch", "-"], "".join(f"netns add {s}\n" for s in spaces.values())
        )
        seed = self.options.seed
        tools.write_settings({spaces[n]: plumbing.settings(layout, n, seed) for n in spaces})
        tools.run_program(["ip", "-batch", "-"], plumbing.cables_script(layout, spaces))
        tools.each(self._address, spaces)
        if self.options.rate_mbit:
            tools.each(self._shape, (*layout.switches, *layout.hosts))
        for row in down_links(layout.fabric):
            self.set_link(row, up=False)
        save_fabric_file(layout.fabric, self.folder / "fabric.json")

    def start_underlay(self, report: Telling = silent) -> None:
        """FRR on every switch; BGP is still talking when it returns.

        Raises:
            LabError: a daemon does not start.
        """
        report(f"FRR on {len(self.layout.switches)} switches")
        tools.each(self._start_frr, self.layout.switches)

    def _address(self, node: str) -> None:
        layout = self.layout
        if node == MGMT:
            script = plumbing.management_script(layout)
        elif node in layout.switches:
            script = plumbing.switch_script(layout, node, self.mbit_per_gbps)
        else:
            script = plumbing.host_script(layout, node)
        options = ["-6"] if layout.ipv6 and node in layout.hosts else []
        tools.run_inside(self.spaces[node], ["ip", *options, "-batch", "-"], script)

    def _shape(self, node: str) -> None:
        script = plumbing.shaping_script(self.layout, node, self.mbit_per_gbps)
        tools.run_inside(self.spaces[node], ["tc", "-batch", "-"], script)

    def frr_folder(self, switch: str) -> Path:
        """Where FRR of a switch has its configuration, sockets and logs."""
        return self.folder / "frr" / switch

    def _start_frr(self, switch: str) -> None:
        folder, bfd = self.frr_folder(switch), self.options.bfd
        folder.mkdir(parents=True)
        (folder / "vty").mkdir()
        (folder / "zebra.conf").write_text(frr.zebra_config(switch))
        (folder / "bgpd.conf").write_text(frr.bgpd_config(self.layout, switch, bfd))
        (folder / "bfdd.conf").write_text(frr.bfdd_config(switch))
        for path in (folder, folder / "vty", *folder.glob("*.conf")):
            shutil.chown(path, "frr", "frr")
        for daemon in ("zebra", *(["bfdd"] if bfd else []), "bgpd"):
            self._start_daemon(switch, folder, daemon)

    def _start_daemon(self, switch: str, folder: Path, daemon: str) -> None:
        command = [
            str(FRR / daemon),
            "-d",
            *("-u", "frr", "-g", "frr", "-P", "0"),
            *("-f", str(folder / f"{daemon}.conf")),
            *("-i", str(folder / f"{daemon}.pid")),
            *("-z", str(folder / "zserv.sock")),
            *("--vty_socket", str(folder / "vty")),
            *("--log", f"file:{folder / f'{daemon}.log'}"),
        ]
        if daemon == "bfdd":
            command += ["--bfdctl", str(folder / "bfdd.sock")]
        tools.run_inside(self.spaces[switch], command)
        tools.go_ahead((folder / f"{daemon}.pid").read_text().strip())

    def reseed(self, seed: int) -> None:
        """Draw the switches' ECMP hashes anew."""
        tools.write_settings(
            {
                self.spaces[switch]: plumbing.hash_setting(switch, seed)
                for switch in self.layout.switches
            }
        )

    def link_switch(self, node: str) -> LinkSwitch:
        """What takes interfaces of a node's namespace up and down."""
        if node not in self._switches:
            self._switches[node] = LinkSwitch(self.spaces[node])
        return self._switches[node]

    def far_end(self, row: int) -> Port:
        """The end of a cable that is taken down, so that the other loses its carrier.

        Of a cable between tiers that is the upper one, so that leaves see what leaves of a
        real fabric see.
        """
        fabric, cable = self.layout.fabric, self.layout.cables[row]
        kind, index = fabric.structure.nodes.kind, fabric.structure.index
        return max(cable.ends, key=lambda port: int(kind[index[port.node]]))

    def set_link(self, row: int, *, up: bool) -> None:
        """Cut a cable, or join it again, by link row."""
        port = self.far_end(row)
        self.link_switch(port.namespace).set(port.name, up=up)

    def set_speed(self, row: int, gbps: float) -> None:
        """Have a cable carry so much each way, where speeds are limited."""
        for port in self.layout.cables[row].ends:
            script = plumbing.speed_script(port, gbps * self.mbit_per_gbps)
            tools.run_inside(self.spaces[port.namespace], ["tc", "-batch", "-"], script)

    def remove(self) -> None:
        """End and delete everything that bears the lab's mark; may be called twice."""
        for switch in self._switches.values():
            switch.close()
        self._switches.clear()
        mark.remove(self.claim)
