"""The first half of ``make fuzz``: good inputs spoilt, and messages made up field by field.

An input that reaches a line of our code that none had reached before is spoilt further (``guide``).
Everything follows from the seed and the number of processes.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from tests.fuzz import agents, calls, conversations, files, records, sessions
from tests.fuzz.guide import MOST, Guide
from tests.fuzz.mutate import spoilt
from tests.fuzz.tally import MOST_FAULTS, Share, Tally, strike, told_of
from tests.fuzz.target import Target

TRACED = 8
"""One input in this many is traced."""


@contextmanager
def opened() -> Iterator[list[Target]]:
    """Open all targets with the services that they need."""
    world = calls.World()
    try:
        kinds = agents.good()
        served = sessions.target(sessions.Sessions(world.store, world.loop), kinds)
        heard = conversations.target(world.loop, kinds["numbered push"])
        yield [
            *files.targets(),
            *records.targets(),
            *agents.targets(),
            served,
            heard,
            *calls.targets(world),
        ]
    finally:
        world.close()


def inputs(
    target: Target, seed: int, numbers: Sequence[int], corpus: Sequence[bytes] = ()
) -> Iterator[bytes]:
    """Yield the inputs of these numbers: good ones spoilt, and made-up ones if the target can.

    ``corpus`` may grow while inputs are taken.
    """
    corpus = corpus or target.corpus
    for number in numbers:
        text = f"{seed}/{target.name}/{number}"
        chance = random.Random(hashlib.sha256(text.encode()).digest())
        if target.make is not None and number % 4:
            made = target.make(chance)
            yield spoilt(chance, [made], target.words) if number % 4 == 1 else made
        elif target.vary is not None and number % 8:
            yield target.vary(chance.choice(corpus), chance)
        else:
            yield spoilt(chance, corpus, target.words)


def run_target(target: Target, seed: int, numbers: Sequence[int]) -> Tally:
    """Run the inputs of these numbers and return their tally."""
    tally, begin = Tally(target.name), time.perf_counter()
    guide, corpus = Guide(), list(target.corpus)
    for content in inputs(target, seed, numbers, corpus):
        if tally.inputs % TRACED:
            strike(target, content, tally)
        elif guide.traced(partial(strike, target, content, tally)) and len(corpus) < MOST:
            corpus.append(content)
        if len(tally.faults) >= MOST_FAULTS:
            break
    tally.seconds = time.perf_counter() - begin
    tally.kept = len(corpus) - len(target.corpus)
    return tally


def share(arguments: Share) -> list[Tally]:
    """Run the part of one process: every ``parts``-th input of every target."""
    total, seed, part, parts, word = arguments
    tallies = []
    with opened() as everything:
        targets = [target for target in everything if word in target.name]
        whole = sum(target.weight for target in targets)
        for target in targets:
            count = max(1, round(total * target.weight / whole))
            tallies.append(run_target(target, seed, range(part, count, parts)))
            told_of(tallies[-1])
    return tallies
