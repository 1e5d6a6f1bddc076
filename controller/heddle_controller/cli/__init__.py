"""The operator's command: a client of the gRPC API, and offline planning without a server."""
