"""Where a job stands: in which order its ranks go over hosts, and what that is worth."""
