"""The Heddle switch agent: holds the routes of one switch and repairs them on its own."""
