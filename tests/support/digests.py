"""Plan some seeds and print a digest of each: ``python -m tests.support.digests SEED ...``."""

from __future__ import annotations

import sys

from heddle_controller.solve import solve
from tests.support.against import digest
from tests.support.drawn import drawn

for seed in map(int, sys.argv[1:]):
    case = drawn(seed)
    sys.stdout.write(f"{seed} {digest(solve(case.fabric, case.flows))}\n")
