"""Flows to paths: candidates, lower bound, assignment, repair and certificate; pure functions."""
