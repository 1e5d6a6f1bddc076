"""Ways to choose paths that Heddle is measured against, hashing first among them."""

from heddle_emulator.strategy.hashing import e_ecmp, ecmp
from heddle_emulator.strategy.names import Strategy, strategy

__all__ = ["Strategy", "e_ecmp", "ecmp", "strategy"]
