"""Heddle for Kubernetes: the fabric as labels and topologies, and an admission check for Kueue.

Everything is level-triggered: the wanted state follows from the objects of the cluster and from
what Heddle knows. So any number of replicas may run, and any of them may be killed at any moment.
"""
