"""A controller and an agent for every switch, started and stopped together on one machine."""
