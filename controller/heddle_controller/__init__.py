"""The Heddle controller: job placements in, collision-free routes in the switches out."""
