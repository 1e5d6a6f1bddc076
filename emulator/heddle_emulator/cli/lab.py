"""``heddle-emulator lab``: a fabric of real kernels on this machine."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from pathlib import Path
from typing import NoReturn

import click

from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.files.fabric_file import load_fabric_file
from heddle_emulator.cli.output import CleanConsole, echo
from heddle_emulator.netns import LabError, mark, tools
from heddle_emulator.netns import converge as looking
from heddle_emulator.netns.frr import Bfd
from heddle_emulator.netns.lab import FASTEST_MBIT, Lab, LabOptions
from heddle_emulator.netns.layout import MGMT, lay_out
from heddle_emulator.netns.programs import METRICS_PORT, Programs
from heddle_emulator.netns.up import bring_up, introduce
from heddle_emulator.topology import clos, with_ipv6

_DEFAULT = "lab"
_FAILED = 1

_name = click.option("--name", default=_DEFAULT, show_default=True, help="Name of the lab.")
_count = click.IntRange(1, 1000)


@click.group()
def lab() -> None:
    """Run a fabric of real kernels, FRR and agents in network namespaces.

    \b
    heddle-emulator lab up                           4 leaves, 2 spines, 8 hosts
    heddle-emulator lab status
    heddle-emulator lab exec l0 vtysh -c 'show ip bgp summary'
    heddle-emulator lab exec l0 nft list ruleset
    heddle-emulator lab exec l0-h0 bash
    heddle-emulator lab exec mgmt heddle --server 169.254.0.1:7400 fabric list
    heddle-emulator lab down

    It needs root. It does not touch the machine's own network.
    """  # noqa: D301 - click's mark for lines that stay as they are


@lab.command()
@_name
@click.option(
    "--fabric",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Fabric file. [default: two tiers with the numbers below]",
)
@click.option("--leaves", type=_count, default=4, show_default=True)
@click.option("--spines", type=_count, default=2, show_default=True)
@click.option("--hosts", type=_count, default=2, show_default=True, help="Hosts on each leaf.")
@click.option("--nics", type=_count, default=1, show_default=True, help="NICs of each host.")
@click.option(
    "--rate-mbit",
    type=click.FloatRange(0),
    default=FASTEST_MBIT,
    show_default=True,
    help="Speed of the fastest cable in Mbit/s, the others in proportion; 0 means no limit.",
)
@click.option(
    "--bfd-ms",
    type=click.IntRange(0, 10_000),
    default=0,
    help="Interval of BFD in milliseconds. [default: no BFD]",
)
@click.option("--ipv6", is_flag=True, help="Use IPv6 addresses, whatever the fabric file has.")
@click.option("--underlay-only", is_flag=True, help="Run FRR only, without controller and agents.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of the switches' hashes.")
def up(
    *,
    name: str,
    fabric: Path | None,
    leaves: int,
    spines: int,
    hosts: int,
    nics: int,
    rate_mbit: float,
    bfd_ms: int,
    ipv6: bool,
    underlay_only: bool,
    seed: int,
) -> int:
    """Build a lab and leave it running until `lab down`."""
    tools.check_needs()
    chosen = (
        load_fabric_file(fabric, note=partial(echo, err=True))
        if fabric
        else clos(leaves=leaves, spines=spines, nics_per_leaf=hosts * nics, nics_per_host=nics)
    )
    chosen = with_ipv6(chosen) if ipv6 else chosen
    options = LabOptions(rate_mbit, Bfd(bfd_ms) if bfd_ms else None, seed)
    return _up(name, chosen, options, agents=not underlay_only)


def _up(name: str, fabric: Fabric, options: LabOptions, *, agents: bool) -> int:
    start, screen = time.monotonic(), CleanConsole(stderr=True)
    layout = lay_out(fabric)
    for swept in mark.sweep():
        screen.print(f"removed lab {swept}, whose owner is gone")
    if mark.read_state(mark.check_name(name)) is not None:
        raise LabError(f"lab {name} is up already: 'lab down --name {name}' first")
    building = Lab(mark.claim(name), layout, options)
    programs = Programs(building) if agents else None
    try:
        with screen.status("") as shown:
            bring_up(building, programs, shown.update)
            if programs is not None:
                asyncio.run(introduce(programs))
        looking.keep(building, agents=agents)
    except BaseException:
        building.remove()
        raise
    finally:
        if programs is not None:
            programs.close()
    nics = len(fabric.rows_of_kind(NodeKind.NIC))
    echo(
        f"lab {name} is up in {time.monotonic() - start:.1f} s: {len(layout.switches)} switches,"
        f" {len(layout.hosts)} hosts with {nics} NICs, {len(layout.cables)} cables"
    )
    if programs is not None:
        echo(f"controller {programs.api} in {MGMT}, metrics on port {METRICS_PORT}")
    return 0


@lab.command()
@_name
def status(*, name: str) -> int:
    """Show what runs and which BGP sessions are missing; exit 1 if something is wrong."""
    tools.check_needs()
    seen = looking.status(looking.reopen(name))
    echo(f"lab {seen.name}: {seen.switches} switches, {seen.hosts} hosts, {seen.cables} cables")
    running = ", ".join(f"{count} {program}" for program, count in sorted(seen.programs.items()))
    echo(f"running: {running or 'nothing'}")
    echo(f"cut: {', '.join(seen.cut) or 'nothing'}")
    for fault in (*seen.faults, *seen.lacking):
        echo(f"amiss: {fault}")
    return _FAILED if seen.faults or seen.lacking else 0


@lab.command("exec", context_settings={"allow_interspersed_args": False})
@_name
@click.argument("node")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(*, name: str, node: str, command: tuple[str, ...]) -> NoReturn:
    """Run a command on a switch, a host, or mgmt; vtysh finds the switch's FRR."""
    tools.check_needs()
    running = looking.reopen(name)
    if node not in running.spaces:
        nodes = ", ".join(list(running.spaces)[:8])
        raise LabError(f"lab {name} has no node {node}; there are {nodes}, ...")
    words = list(command)
    if Path(words[0]).name == "vtysh":
        words[1:1] = ["--vty_socket", str(running.frr_folder(node) / "vty")]
    os.execvp("ip", ["ip", "netns", "exec", running.spaces[node], *words])  # noqa: S606, S607


@lab.command()
@_name
@click.option("--all", "every", is_flag=True, help="Remove every lab that is not in use.")
def down(*, name: str, every: bool) -> int:
    """Remove a lab and everything that runs in it, even if it is only half built."""
    tools.check_needs()
    there = mark.labs()
    chosen, failed = there if every else [mark.check_name(name)], False
    for one in chosen:
        if one not in there:
            echo(f"lab {one} is not up")
            continue
        try:
            mark.remove(mark.claim(one))
            echo(f"lab {one} is removed")
        except LabError as error:
            echo(f"error: {error}", err=True)
            failed = True
    return _FAILED if failed else 0
