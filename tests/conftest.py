"""Set-up for all tests: failures can be understood and repeated.

Failures of hypothesis can be run again. For a program that did not end in time, its output is
shown.
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
"""Seed of hypothesis and the fuzzers in `make test`, fixed so that it does not fail by chance."""

# No deadline, since a shared machine may stall for longer than any example takes.
settings.register_profile(
    "house",
    deadline=None,
    max_examples=examples(30),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")
if not DEEP:
    # Hypothesis also draws numbers that are written in loaded modules. Which modules are loaded
    # depends on what a worker ran before, so a test would see other cases from run to run.
    assert "is_local_module_file" in vars(providers)
    vars(providers)["is_local_module_file"] = lambda _: False


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose hypothesis' seed here unless one was given, so that the header can name it.

    The seed is a new one in `make deep`, and otherwise always the same. Logs of code in this
    process get plain tracebacks, since a decorated one takes a second to draw. Ctrl-C is handled
    even in the background of a shell, where it would be ignored, also by all programs that tests
    start and interrupt.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*structlog.get_config()["processors"][:-1], plain])
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = random.randrange(2**32) if DEEP else SEED


@pytest.fixture
def hangups() -> Iterator[None]:
    """Have programs that the test starts heed SIGHUP, which nohup has all of them ignore."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def pytest_xdist_auto_num_workers() -> int:
    """Return processors plus three, since many tests wait for leases, keepalives or BGP."""
    return (os.cpu_count() or 1) + 3


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Let one worker collect first, so that it alone compiles what all workers import."""
    if not hasattr(session.config, "workerinput"):
        return (yield)
    with Path(__file__).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(lock, fcntl.LOCK_SH)
        return (yield)


def pytest_report_header(config: pytest.Config) -> str:
    """Return the seed as the option that repeats the run."""
    return f"hypothesis: --hypothesis-seed={config.option.hypothesis_seed}"


def _behind(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and the errors that caused it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the output of programs that did not end in time, which the error itself leaves out."""
    report = yield
    for error in _behind(call.excinfo.value if call.excinfo else None):
        if isinstance(error, subprocess.TimeoutExpired):
            for name, said in (("output", error.stdout), ("errors", error.stderr)):
                text = said.decode(errors="replace") if isinstance(said, bytes) else said
                report.sections.append((f"{name} of {error.cmd}", text or "nothing"))
    return report
