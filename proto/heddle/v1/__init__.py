"""Version 1 of the wire contract: the .proto files and the code generated from them."""
