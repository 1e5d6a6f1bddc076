"""Limits on what files and calls may say: how long names are, and which rates make sense.

Loads are sums of rates over capacities. The bounds of a rate are far above any link or flow, and
far within what floats hold. So no sum over any fabric overflows, and no rate is lost beside
another: a plan's certificate stays a number.
"""

from __future__ import annotations

from heddle_controller.model.arrays import Bools, Floats

MAX_NAME = 256
"""Characters of the id of a node, of a host, a zone, a link's key, a demand's job or phase."""
MAX_FLOW = 1024
"""Characters of a flow's id; a job's flows are named by job, phase and two NICs."""
MAX_TITLE = 1024
"""Characters of what a fabric is called for people."""


def too_long(what: str, length: int, most: int) -> str:
    """What to say of a name that is too long."""
    return f"{what} has {length:,} characters; give at most {most:,}"


LEAST, MOST = 1e-6, 1e9
"""In Gbit/s: a kilobit and an exabit a second."""
KIBI = 1024
CURE = "give a finite number above 0, from 1e-06 to 1e+09"


def sensible(gbps: Floats) -> Bools:
    """Whether each rate is one that a link or a flow may have; nan is none."""
    result: Bools = (gbps >= LEAST) & (gbps <= MOST)
    return result


def size_words(size: float) -> str:
    """Bytes in words: "1 KiB", "1.5 GiB"."""
    units = ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while size >= KIBI and len(units) > 1:
        size /= KIBI
        units.pop(0)
    return f"{size:.3g} {units[0]}" if size < KIBI else f"{size:,.0f} {units[0]}"
