"""Exact-match tables of switches have limits: which flows are split, and which do without.

Entries are counted as programs write them. Pairs of NICs that tables leave no room to part
are planned as one flow; what still does not fit is given up by least weight, then by fewest
bytes for an entry freed, and what then has room is taken back: a greedy cover. Flows given
up are on the underlay, each with its reason in the plan.

Cost: O(paths x hops) array steps for each of a few rounds.
"""
