"""The script behind `make bench`: `tests/bench/run.py [--quick | --full] [--only NAME]…`.

The repository root is put on the import path first, so that this folder is `tests.bench` here too,
as it is for its tests, for mypy and for the processes that it starts.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.bench.command import main  # noqa: E402 - the path first

if __name__ == "__main__":
    # End in order on SIGTERM, as after Ctrl-C, so that no process it started outlives it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(ROOT / "bench.json", sys.argv[1:]))
