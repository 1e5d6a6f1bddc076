"""From plans to the entries of switches; also differences, verification and explanations."""
