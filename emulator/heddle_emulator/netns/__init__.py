"""The lab: the same fabrics with real kernels, FRR and packets, on one machine.

Import its rooms by name; this one stays empty, as probes are started from it and must
be there at once.
"""
