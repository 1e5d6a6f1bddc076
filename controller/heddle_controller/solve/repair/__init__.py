"""From one plan to the next: only what must move moves; and a backup for every path.

The newest plan is kept with its loads, the members of its arcs and its cuts, so that a lost
link costs what it carried. What lost its path is placed by the same search as in a new plan,
aiming at the bound or at what each tier had. Backups are an edge colouring in healthy zones;
elsewhere a backup is the way that shares least with its path, found by shortest paths.

Cost: an event O(what it touches); backups of a new plan O(paths x hops) array steps.
"""
