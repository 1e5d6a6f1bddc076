"""``heddle-emulator ports``: the path of each UDP source port through switches that hash."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click
import numpy as np

from heddle_controller.model.demand import resolve
from heddle_controller.model.errors import refuse
from heddle_controller.model.files.fabric_file import load_fabric_file
from heddle_controller.model.files.flows_file import load_demands
from heddle_controller.model.files.port_paths_file import save_port_paths
from heddle_controller.model.flows import FIRST_SOURCE_PORT, SOURCE_PORT_COUNT
from heddle_emulator.cli.output import echo
from heddle_emulator.switches import Switches
from heddle_emulator.walk import probed

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command()
@click.option(
    "--fabric", required=True, type=_FILE, help="Fabric file; all its switches must hash."
)
@click.option(
    "--flows", required=True, type=_FILE, help="Flow file; the NICs of each flow probe each other."
)
@click.option(
    "--probes",
    type=click.IntRange(1, SOURCE_PORT_COUNT),
    default=64,
    show_default=True,
    help="Number of ports to probe between two NICs.",
)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Seed of the switches' hashes.",
)
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="port-paths.json to write; .gz compresses.",
)
def ports(fabric: Path, flows: Path, probes: int, seed: int, out: Path) -> None:
    """Probe source ports as hosts do, and write the path of each port.

    `heddle plan --port-paths` uses the file. The same seed gives the same hashes as `compare` for
    ecmp.
    """
    loaded = load_fabric_file(fabric, note=partial(echo, err=True))
    if len(programmed := loaded.structure.programmed):
        switch = loaded.structure.nodes.ids[int(programmed[0])]
        reason = 'does not hash: give each switch "forwarding": "ecmp"'
        raise refuse(str(fabric), f"switch {switch!r}", reason)
    wanted = resolve(load_demands(flows, note=partial(echo, err=True)), loaded, origin=str(flows))
    tried = FIRST_SOURCE_PORT + np.arange(probes)
    known = probed(loaded, wanted, Switches(loaded, seed), np.tile(tried, (len(wanted), 1)))
    save_port_paths(known, loaded, out)
    echo(f"{out}: {len(known.ports):,} ports on {len(known):,} paths, seed {seed}")
