"""Edge colouring of healthy fabrics with tiers: which spine, plane and core each flow takes.

Flows are edges between leaves, and spines are colours. A colouring in which every vertex has each
colour equally often, give or take one, loads every uplink and downlink with the floor or the
ceiling of its fair share, which nothing can beat. Such a colouring of a bipartite multigraph always
exists (de Werra 1971). It is found by halving along Euler circles (Gabow 1976). An odd number of
colours gives up one perfect matching first (Hall 1935, by OR-Tools' maximum flow). Between zones,
exchanges along alternating chains (Kempe) even out planes.

Cost: O(flows x log(spines)) in array steps, for all zones at once. A whole plan of 24,576 flows
takes about 0.2 s.
"""
