"""A drill in virtual time: real controller and agents, flows as rates, moments as told."""
