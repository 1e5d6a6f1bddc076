"""Repair of a plan after a change, moving only what must move, and a backup for every path.

The newest plan is kept with its loads, the flows on each arc and its cuts, so a lost link costs
time in proportion to what it carried. Flows that lost their path are placed by the same search as
in a new plan. The search aims at the bound, or at what each tier carried before if that is more.
Backups are an edge colouring in healthy zones. Elsewhere a backup is the way that shares least with
its path, found by shortest paths.

In quiet, search from the standing plan (``few_moves``) tries to reach what a plan from scratch
would gain, and moves far fewer flows.

Cost: an event takes O(what it touches); backups of a new plan take O(paths x hops) array steps;
search in quiet takes about as long as a plan from scratch.
"""
