"""Link state and counters as the switch sees them."""
