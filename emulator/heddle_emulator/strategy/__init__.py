"""Ways to choose paths that Heddle is measured against, hashing first among them."""
