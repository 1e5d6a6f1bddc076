"""Colouring flows within and between zones, so that leaves and cores are both at their least.

A flow between zones needs spines of one *plane* in both: spines that share cores.
Flows are first coloured by plane, all together, which is fair to every leaf; what
leaves a zone is evened out over planes by exchanges (``exchange``), as far as links to
the cores need it. Within a plane
of several spines a zone, up to all of them (a full mesh), each zone is then coloured
by itself, the flows that leave or enter it ending at one more vertex that stands for
all the rest: so a zone's spines get even shares of them too, and a flow may rise by
one spine and fall by another. A fair share of a fair share is a fair share, rounded
up or down once, so the least is reached in each tier.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Ints
from heddle_controller.solve.colouring.balanced import equitable_colouring
from heddle_controller.solve.colouring.exchange import Edges, even_out


def colour_zones(edges: Edges, group: Ints, links: int) -> tuple[Ints, Ints]:
    """Colour of each flow where it rises and where it falls.

    ``group`` is the plane of each colour, shape (colours,). ``links`` is how many lead
    from a spine to cores; 0 if flows weigh unlike, so that they cannot be exchanged.
    """
    plane, size = np.unique(group, return_counts=True)
    if not len(edges.cross) or size.max() == 1 or size.min() != size.max():
        colour = _by_plane(edges, len(group), links)
        return colour, colour
    chosen = _by_plane(edges, len(plane), links * int(size[0]))
    inside = _by_spine(edges, chosen, len(plane), int(size[0]))
    # Colours of one plane need not stand next to each other.
    table = np.argsort(group, kind="stable").reshape(len(plane), -1)
    return table[chosen, inside[0]], table[chosen, inside[1]]


def _by_plane(edges: Edges, planes: int, links: int) -> Ints:
    if planes == 1:
        return np.zeros(len(edges.left), dtype=np.int64)
    left, right = edges.left, edges.right
    cross = edges.zone_left != edges.zone_right
    colour = np.zeros(len(left), dtype=np.int64)
    if _separable(edges, planes):
        parts = [np.flatnonzero(cross), np.flatnonzero(~cross)]
    else:
        # Flows between zones first: at every leaf they are then paired with each other.
        parts = [np.argsort(~cross, kind="stable")]
    for rows in parts:
        chosen = equitable_colouring(left[rows], right[rows], planes)
        if links and cross[rows].any():
            most = _least(edges, planes * links) * links
            chosen = even_out(edges.take(rows), chosen, planes, most)
        colour[rows] = chosen
    return colour


def _least(edges: Edges, links: int) -> int:
    """What the fullest link of the fullest zone has to carry, of so many links a zone."""
    zones = (edges.zone_left[edges.cross], edges.zone_right[edges.cross])
    return -(-max(int(np.bincount(zone).max()) for zone in zones) // links)


def _by_spine(edges: Edges, plane: Ints, planes: int, spines: int) -> tuple[Ints, Ints]:
    """Spine within its plane where each flow rises and where it falls."""
    cross = edges.zone_left != edges.zone_right
    inside, between = np.flatnonzero(~cross), np.flatnonzero(cross)
    outside = int(max(edges.left.max(), edges.right.max())) + 1
    far_left, far_right = outside + edges.zone_left, outside + edges.zone_right
    # Within a zone, out of it, into it; a vertex is one leaf and plane, or the rest and plane.
    rows = np.concatenate([inside, between, between])
    first = [edges.left[inside], edges.left[between], far_right[between]]
    second = [edges.right[inside], far_left[between], edges.right[between]]
    left, right = (np.concatenate(ends) * planes + plane[rows] for ends in (first, second))
    colour = equitable_colouring(left, right, spines)
    own, out, into = np.split(colour, [len(inside), len(inside) + len(between)])
    up, down = np.zeros_like(plane), np.zeros_like(plane)
    up[inside] = down[inside] = own
    up[between], down[between] = out, into
    return up, down


def _separable(edges: Edges, colours: int) -> bool:
    """Whether colouring flows within and between zones apart costs no leaf anything.

    Apart is better for the cores, which then see each zone's flows balanced.
    """
    cross = edges.zone_left != edges.zone_right
    if not cross.any() or cross.all():
        return True
    together = apart = 0
    for side in (edges.left, edges.right):
        between = np.bincount(side[cross], minlength=int(side.max()) + 1)
        within = np.bincount(side[~cross], minlength=int(side.max()) + 1)
        together = max(together, int((-(-(between + within) // colours)).max()))
        apart = max(apart, int((-(-between // colours) + -(-within // colours)).max()))
    return apart <= together
