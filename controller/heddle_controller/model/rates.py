"""Which rates make sense: far more than any link or flow has, far less than floats can hold.

Loads are sums of rates over capacities. With both between these bounds no sum over any
fabric overflows, and none is lost beside another: a plan's certificate stays a number.
"""

from __future__ import annotations

from heddle_controller.model.arrays import Bools, Floats

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
