"""What no plan can beat, and how that is proven.

Cuts: what has to leave a set of NICs or switches leaves over its arcs; sums over arrays,
at once for all sets. Where cuts are not met, the linear relaxation of the multi-commodity
problem is solved over candidate paths, by smoothing (Nesterov 2005) and an accelerated
gradient on shares (Tseng 2008); new paths come by column generation (Gilmore and Gomory
1961). Its prices prove a bound over all paths by weak duality, however far it came, and
bounds are raised to the next load that whole QPs can make.

Cost: cuts O(flows + arcs); the relaxation some hundred products with a sparse matrix of
(commodities x paths x hops) entries: from 30 ms on tiny graphs to some ten seconds on a
jellyfish of 500 switches.
"""
