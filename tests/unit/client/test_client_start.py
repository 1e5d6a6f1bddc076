"""Which modules a program loads when it imports the client."""

from __future__ import annotations

import subprocess
import sys

MAY = {"cython_runtime", "google", "heddle", "typing_extensions"}
LOADED = """
import sys
before = set(sys.modules)
import heddle.client
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


def test_the_client_needs_grpc_and_nothing_else() -> None:
    """Besides Python's own modules, only gRPC and its messages are loaded."""
    run = [sys.executable, "-c", LOADED]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    own = sys.stdlib_module_names
    loaded = {name for name in done.stdout.split() if name not in own and not name.startswith("_")}
    assert {"grpc", "heddle"} <= loaded
    others = {name for name in loaded if not name.startswith("grpc")}  # gRPC tries its tools
    assert others <= MAY, others - MAY
