"""Traffic patterns that do not come from jobs, used to compare fabrics."""

from heddle_emulator.traffic.matrix import PATTERNS, Pattern
from heddle_emulator.traffic.table import flows_between, save_flows

__all__ = ["PATTERNS", "Pattern", "flows_between", "save_flows"]
