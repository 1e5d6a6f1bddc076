"""Start many agents from one process that has already loaded their code.

Every agent is a process in the namespace of its switch. Loading gRPC and the rest takes most of a
second, and 24 agents would do it 24 times. So one process loads the code, opens nothing, and forks
each agent. Such an agent behaves like one that was started alone, and can be killed like one.

Each line of JSON on standard input names an agent to start, and is answered by a line with its
process id. The process ends with its standard input. The agents do not.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from heddle_emulator.netns.kernel import enter, see_own_devices
from heddle_emulator.netns.tools import go_ahead

NAME_BYTES = 15
_FAILED = 70


def main() -> None:
    """Start agents until the end of input."""
    space = sys.argv[1]
    enter(space)
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    import heddle_agent.app  # noqa: F401, PLC0415 - this is what agents need not read again
    from heddle_agent import cli  # noqa: PLC0415 - as above

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for agents: no zombies
    for line in sys.stdin:
        told = json.loads(line)
        sys.stdout.write(f"{_start(told, cli.main)}\n")
        sys.stdout.flush()


def _start(told: dict[str, Any], run: Any) -> int:  # noqa: ANN401 - click's own type
    """Start an agent, and return its process id once it is in its namespace or has failed."""
    inside, entered = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(inside)
        _become(told, run, entered)
    os.close(entered)
    os.read(inside, 1)  # returns when the agent closes its end, or has failed
    os.close(inside)
    return process


def _become(told: dict[str, Any], run: Any, entered: int) -> NoReturn:  # noqa: ANN401 - as above
    """Turn this process into the agent. ``entered`` is closed once it is in its namespace."""
    status = _FAILED
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _redirect(Path(told["log"]))
        enter(told["space"])
        os.close(entered)
        see_own_devices()
        go_ahead("self")
        Path("/proc/self/comm").write_text(told["name"][:NAME_BYTES])
        os.environ.update(told["env"])
        sys.argv = ["heddle-agent", *told["arguments"]]
        run()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else _FAILED
    except BaseException:  # noqa: BLE001 - the last frame of a process
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(status)


def _redirect(log: Path) -> None:
    """Let standard input be empty, and write output and errors to a file."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for target, source in ((0, nothing), (1, output), (2, output)):
        os.dup2(source, target)


if __name__ == "__main__":
    main()
