"""Where to place a job: on which hosts, in which rank order, and what the network then gives it."""
