"""The level-triggered loop: what is wanted, what is programmed, what to do next; owns the ports."""
