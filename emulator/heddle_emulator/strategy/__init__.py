"""Ways of choosing paths that Heddle is measured against, hashing first of all."""

from heddle_emulator.strategy.carried import Carried, Outcome, whole
from heddle_emulator.strategy.choose import Choice, Strategy, choose, names_of, strategy
from heddle_emulator.strategy.compare import Comparison, compare
from heddle_emulator.strategy.greedy import greedy_paths
from heddle_emulator.strategy.limits import ideal, spray
from heddle_emulator.strategy.pinned import DModK, Pinned, Static
from heddle_emulator.strategy.te import te

__all__ = [
    "Carried",
    "Choice",
    "Comparison",
    "DModK",
    "Outcome",
    "Pinned",
    "Static",
    "Strategy",
    "choose",
    "compare",
    "greedy_paths",
    "ideal",
    "names_of",
    "spray",
    "strategy",
    "te",
    "whole",
]
