"""Traffic that no job describes: the patterns by which fabrics are compared."""

from heddle_emulator.traffic.matrix import PATTERNS, Pattern
from heddle_emulator.traffic.table import flows_between, save_flows

__all__ = ["PATTERNS", "Pattern", "flows_between", "save_flows"]
