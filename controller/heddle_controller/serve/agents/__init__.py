"""Sessions with agents: what is sent to switches, and what their agents report."""
