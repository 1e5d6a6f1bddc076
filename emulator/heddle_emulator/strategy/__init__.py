"""Ways to choose paths that Heddle is measured against, hashing first among them."""

from heddle_emulator.strategy.hashing import e_ecmp, ecmp

__all__ = ["e_ecmp", "ecmp"]
