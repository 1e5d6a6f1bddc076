"""Conversion of protobuf messages to values of the model and back; no gRPC calls, no I/O."""
