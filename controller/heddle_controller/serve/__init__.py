"""The gRPC services, the sessions with agents, and the conversion of messages."""
