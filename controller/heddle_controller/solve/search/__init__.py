"""Whole QPs where colouring does not do: damaged, mixed and irregular fabrics.

Shares of the relaxation are rounded to whole QPs, what is left is placed greedily, and
local search takes load off the worst arcs by ejection chains (Glover 1996), each step better
than the arc it relieves was. Where that ends above the bounds, guided local search (Voudouris and
Tsang 1999) goes on, and small problems are settled as a whole by constraint programming (CP-SAT).

Cost: counted in chunks looked at, in steps and in CP-SAT's deterministic time, never in seconds, so
that equal input gives equal output; a limit of time may end it earlier.
"""
