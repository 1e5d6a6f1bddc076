"""The other half of ``make fuzz``: inputs that atheris finds by what code they reach.

The targets are those of ``run``, but our code counts its branches and comparisons as it runs, and
libFuzzer keeps and changes whatever reaches a new one. Each target has a process of its own, forked
from one that has loaded the instrumented code, so that targets do not affect each other. An input
that kills its process is reported like any other fault. The same seed makes the same inputs
wherever a target does not depend on the time.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import random
import time
from contextlib import redirect_stderr, suppress
from typing import NoReturn

import atheris

from tests.fuzz.tally import MOST_FAULTS, Share, Tally, strike, told_of

OURS = os.environ.get(
    "HEDDLE_FUZZ_GUIDED_BY", "heddle_controller heddle_agent heddle_emulator"
).split()
"""Packages in which coverage is counted. Fewer packages load sooner."""
with redirect_stderr(io.StringIO()), atheris.instrument_imports(include=OURS):
    from tests.fuzz.mutate import MOST_BYTES, spoilt
    from tests.fuzz.run import opened
    from tests.fuzz.target import Target, scratch

MADE = 24
"""Inputs of the right shape to start from, if a target can make such."""
MEGABYTES = 2048
"""Memory that a target may take."""
SILENT = os.open(os.devnull, os.O_WRONLY)


class LastInput:
    """Shared memory with the input that a forked process is running, for the one that forked it."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, MOST_BYTES + 8)

    def note(self, content: bytes) -> None:
        """Note the input that runs next."""
        part = content[:MOST_BYTES]
        self._shared[:8] = len(part).to_bytes(8, "big")
        self._shared[8 : 8 + len(part)] = part

    def read(self) -> bytes:
        """Return the input noted last."""
        return self._shared[8 : 8 + int.from_bytes(self._shared[:8], "big")]


def begin_from(target: Target, seed: int) -> list[bytes]:
    """Return the corpus of a target and some made inputs, to start from."""
    chance = random.Random(f"{seed}/{target.name}")
    made = [target.make(chance) for _ in range(MADE)] if target.make else []
    return [*target.corpus, *made]


def changed(target: Target, content: bytes, most: int, seed: int) -> bytes:
    """Return an input that resembles one that reached something, or another of the right shape."""
    chance = random.Random(seed)
    way = chance.random()
    if target.vary is not None and way < 0.5:
        return target.vary(content, chance)[:most]
    if target.make is not None and way < 0.65:
        return target.make(chance)[:most]
    if way < 0.8:
        return spoilt(chance, [content, *target.corpus], target.words)[:most]
    return bytes(atheris.Mutate(content, most))


def fuzz(target: Target, seed: int, count: int, last: LastInput, tell: int) -> NoReturn:
    """Run so many inputs, send the tally through a pipe, and end the process."""
    tally, began = Tally(target.name), time.perf_counter()
    corpus, first = scratch() / "corpus", begin_from(target, seed)
    corpus.mkdir()
    for number, content in enumerate(first):
        (corpus / str(number)).write_bytes(content)

    def one(content: bytes) -> None:
        last.note(content)
        strike(target, content, tally)
        if tally.inputs >= count or len(tally.faults) >= MOST_FAULTS:
            tally.seconds = time.perf_counter() - began
            tally.kept = len(list(corpus.iterdir())) - len(first)
            with os.fdopen(tell, "wb") as pipe:
                pickle.dump(tally, pipe)
            os._exit(0)

    def change(content: bytes, most: int, number: int) -> bytes:
        return changed(target, content, most, number)

    options = [f"-seed={seed % 2**31 or 1}", f"-max_len={MOST_BYTES}", "-timeout=0"]
    options += [f"-rss_limit_mb={MEGABYTES}", "-len_control=0", str(corpus)]
    atheris.Setup(["fuzz", *options], one, custom_mutator=change)
    atheris.Fuzz()
    os._exit(1)


def forked(name: str, seed: int, count: int) -> Tally:
    """Fuzz one target in a process of its own."""
    last = LastInput()
    ear, mouth = os.pipe()
    began = time.perf_counter()
    child = os.fork()
    if not child:
        os.close(ear)
        os.dup2(SILENT, 1)
        os.dup2(SILENT, 2)
        with opened() as everything:
            fuzz(next(one for one in everything if one.name == name), seed, count, last, mouth)
    os.close(mouth)
    with os.fdopen(ear, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    with suppress(EOFError, pickle.UnpicklingError):
        tally = pickle.loads(answer)
        assert isinstance(tally, Tally)
        return tally
    lost = Tally(name, inputs=1, seconds=time.perf_counter() - began)
    lost.faults.append((f"crash: the process ended with status {status}", last.read()))
    return lost


def share(arguments: Share) -> list[Tally]:
    """Run the part of one process: every ``parts``-th target, with all its inputs."""
    total, seed, part, parts, word = arguments
    with opened() as everything:
        targets = [target for target in everything if word in target.name]
    weights = {target.name: target.weight for target in targets}
    whole = sum(weights.values())
    tallies = []
    for name in list(weights)[part::parts]:
        tallies.append(forked(name, seed, max(1, round(total * weights[name] / whole))))
        told_of(tallies[-1])
    return tallies
