"""What `make bench` runs: `tests/bench/run.py [--quick | --full] [--only NAME]…`.

The root is put on the path first, so that this folder is `tests.bench` here as it is
for its tests, for mypy and for the processes that it starts.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.bench.command import main  # noqa: E402 - the path first

if __name__ == "__main__":
    # Asked to end, it ends in order as after Ctrl-C: what it started does not outlive it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(ROOT / "bench.json", sys.argv[1:]))
