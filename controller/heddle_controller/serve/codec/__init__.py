"""Wire messages to the model and back; pure functions, no gRPC, no I/O."""
