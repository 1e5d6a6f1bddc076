"""``heddle-emulator demo``: jobs placed and a link broken, end to end, on this machine."""

from __future__ import annotations

import asyncio

import click

from heddle.client import HeddleError
from heddle_emulator.demo.nic import play_nic
from heddle_emulator.demo.scene import FABRICS
from heddle_emulator.demo.screen import Screen
from heddle_emulator.demo.story import play_demo
from heddle_emulator.fleet import ControllerError

_FAILED = 1


@click.command()
@click.option("--keep", is_flag=True, help="Leave everything running at the end, until Ctrl-C.")
@click.option(
    "--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of hosts and hashes."
)
@click.option(
    "--fabric",
    type=click.Choice([*FABRICS]),
    default=next(iter(FABRICS)),
    show_default=True,
    help="dual-tor: every NIC has links to two leaves.",
)
@click.option(
    "--nic",
    is_flag=True,
    help="A different demo, as root on real kernels: switches only hash, and NICs choose "
    "source ports.",
)
@click.option("--ipv6", is_flag=True, help="With --nic: use IPv6 addresses.")
def demo(*, keep: bool, seed: int, fabric: str, nic: bool, ipv6: bool) -> int:
    """Place jobs on 512 NICs, measure hashing and Heddle, break a link, measure again.

    Starts a controller and an agent for every switch, all on loopback, and stops them at the end.
    Exit status 0: all claims held. 1: some did not.
    """
    screen = Screen()
    if nic:
        return _verdict(screen, play_nic(screen, seed=seed, ipv6=ipv6))
    if ipv6:
        raise click.UsageError("--ipv6 is for --nic")
    try:
        held = asyncio.run(play_demo(screen, FABRICS[fabric](), keep=keep, seed=seed))
    except (HeddleError, ControllerError) as error:
        screen.check(False, str(error))
        held = False
    except TimeoutError:
        screen.check(False, "a step took too long; is the machine very busy?")
        held = False
    return _verdict(screen, held)


def _verdict(screen: Screen, held: bool) -> int:  # noqa: FBT001 - the last word, not a mode
    if not held:
        screen.line(f"the demo failed: {screen.failed} of its checks did not hold", "bold red")
        return _FAILED
    screen.line("all of it held", "bold green")
    return 0
