"""Lower bounds that no plan can beat, and their proofs.

Cuts: the traffic that has to leave a set of NICs or switches leaves over the set's arcs. They are
sums over arrays, for all sets at once. Where cuts are not met, the linear relaxation of the
multi-commodity problem is solved over candidate paths, by smoothing (Nesterov 2005) and an
accelerated gradient method on shares (Tseng 2008). New paths come by column generation (Gilmore and
Gomory 1961). The prices of the relaxation prove a bound over all paths by weak duality, however far
the method came. Bounds are raised to the next load that whole QPs can make.

Cost: cuts O(flows + arcs); the relaxation some hundred products with a sparse matrix of
(commodities x paths x hops) entries: from 30 ms on tiny graphs to some ten seconds on a jellyfish
of 500 switches.
"""
