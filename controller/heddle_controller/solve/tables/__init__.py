"""Limits of exact-match tables: which flows may be split, and which get no entries.

Entries are counted as programs write them. Pairs of NICs whose flows the tables have no room to
split are planned as one flow. What still does not fit is given up by least weight, then by fewest
bytes for each freed entry. What then has room is taken back: a greedy cover. Flows that are given
up use the underlay, each with its reason in the plan.

Cost: O(paths x hops) array steps, for each of a few rounds.
"""
