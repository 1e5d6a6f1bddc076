"""Sessions of agents: what goes down to switches, what comes up from them."""
