"""Ways to choose paths that Heddle is measured against, hashing first among them."""

from heddle_emulator.strategy.greedy import greedy
from heddle_emulator.strategy.hashing import e_ecmp, ecmp
from heddle_emulator.strategy.names import Strategy, strategy
from heddle_emulator.strategy.pinned import Pinned
from heddle_emulator.strategy.pinning import dmodk, static

__all__ = ["Pinned", "Strategy", "dmodk", "e_ecmp", "ecmp", "greedy", "static", "strategy"]
