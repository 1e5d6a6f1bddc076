"""The stream to the controllers: parameters first, then pushes down and acks up."""
