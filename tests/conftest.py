"""What every test gets: failures that can be understood.

Those of hypothesis can be run again; of a program that was given up, what it had said is shown.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.support.depth import DEEP, examples

SEED = 3891532509
"""Of what hypothesis and the fuzzers draw in `make test`, which is not to fail by chance."""

# No deadline: a shared machine stalls for longer than any example takes.
settings.register_profile(
    "house",
    deadline=None,
    max_examples=examples(30),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")
if not DEEP:
    # Hypothesis also draws numbers that stand in modules that happen to be loaded: which these are
    # depends on what a worker ran before, so a test would see other cases from run to run.
    assert "is_local_module_file" in vars(providers)
    vars(providers)["is_local_module_file"] = lambda _: False


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose hypothesis' seed here unless one was given, so that the header can name it.

    It is a fresh one in `make deep`, else always the same.

    Logs of what runs in this process have plain tracebacks: a drawn one takes a second to draw.

    Ctrl-C is heard also in the background of a shell, which would have all programs ignore it
    that tests start and interrupt.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], plain])
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = random.randrange(2**32) if DEEP else SEED


def pytest_xdist_auto_num_workers() -> int:
    """Three more than processors: many tests wait, for leases, keepalives or BGP."""
    return (os.cpu_count() or 1) + 3


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """One worker collects first, and so compiles what all import; the others would do it too."""
    if not hasattr(session.config, "workerinput"):
        return (yield)
    with Path(__file__).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)
        return (yield)


def pytest_report_header(config: pytest.Config) -> str:
    """The seed, in the form that takes it back."""
    return f"hypothesis: --hypothesis-seed={config.option.hypothesis_seed}"


def _behind(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that it came of."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what programs said that did not end in time: the error itself has their names alone."""
    report = yield
    for error in _behind(call.excinfo.value if call.excinfo else None):
        if isinstance(error, subprocess.TimeoutExpired):
            for name, said in (("output", error.stdout), ("errors", error.stderr)):
                text = said.decode(errors="replace") if isinstance(said, bytes) else said
                report.sections.append((f"{name} of {error.cmd}", text or "nothing"))
    return report
