"""A drill in the lab: real kernels, FRR and packets, and the clock on the wall."""
