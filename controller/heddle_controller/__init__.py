"""The Heddle controller: job placements in, collision-free routes in the switches out."""

import os

# gRPC reads this on first import. Both programs report its errors in their own words, and its own
# lines would stand among the JSON of the log.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
