"""From jobs to flows: groups of the parallelism, their collectives, rails, PXN and phases."""
