"""Search for paths of whole QPs in damaged, mixed and irregular fabrics.

Here colouring is not enough. Shares of the relaxation are rounded to whole QPs, and the rest is
placed greedily. Local search takes load off the worst arcs by ejection chains (Glover 1996); no
step makes any arc as bad as the relieved one was. Where that ends above the bounds, guided local
search (Voudouris and Tsang 1999) goes on, and small problems are solved as a whole by constraint
programming (CP-SAT).

Effort is counted in chunks looked at, in steps and in CP-SAT's deterministic time, never in
seconds, so that equal input gives equal output. A time limit may end it earlier.
"""
