"""The gRPC services and agent sessions, and the way between messages and the model."""
