"""Heddle for Kubernetes: the fabric as labels and topologies, and an admission check for Kueue.

Everything is level-triggered: what is to be follows from the objects of the cluster and from what
Heddle knows, so any number of replicas may run, and any may be killed at any moment.
"""
