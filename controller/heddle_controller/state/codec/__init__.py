"""Values to bytes and back, the same for every form of the store; never pickle."""
