"""Fabric, demand and job files of Heddle and of other systems, read into the model."""
