"""The Heddle emulator: fabrics, agents and traffic on one machine, with a verdict of its own."""
