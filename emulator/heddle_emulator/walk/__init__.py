"""Link load as packets find it: every hop is asked of the agents' tables, never of the plan."""
