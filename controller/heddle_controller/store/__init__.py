"""What must survive the controller, behind reconcile's store port: one SQLite file, for now."""
