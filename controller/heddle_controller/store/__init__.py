"""What must survive the controller, kept in one SQLite file or in a Redis that replicas share."""
