"""The operator's command: a client of the gRPC API, and offline planning without a server."""

import os

# gRPC reads this when it is first imported; what it has to say, commands say in their own words.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
