"""Jobs to flows: the groups of the parallelism, their collectives, rails, PXN and phases."""
