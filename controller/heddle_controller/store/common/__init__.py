"""What every form of the store decides alike: pure functions on values, no database."""
