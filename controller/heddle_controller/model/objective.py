"""What more entries are worth to an operator."""

from __future__ import annotations

from typing import Literal, TypeAlias

Objective: TypeAlias = Literal["headroom", "economy"]
"""Room on links for local repair, where tables have room; or the fewest entries."""
