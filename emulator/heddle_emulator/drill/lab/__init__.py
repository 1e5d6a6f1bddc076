"""Drills in the lab: real kernels, FRR and packets, in real time."""
