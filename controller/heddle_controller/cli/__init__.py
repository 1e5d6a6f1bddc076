"""The operator's command: a client of the gRPC API, and offline planning without a server."""

import os

# gRPC reads this on first import. Commands report its errors in their own words.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
