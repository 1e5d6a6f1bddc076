"""Drills in virtual time: a real controller and agents, flows as rates, and given delays."""
