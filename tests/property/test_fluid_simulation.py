"""The fluid simulation against the definition of max-min fairness and a slow reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.arrays import Floats
from heddle_emulator.fluid.shares import Shares, fair_rates
from heddle_emulator.fluid.simulation import FluidSimulation, Timeline
from heddle_emulator.fluid.streams import Streams
from tests.property.fluid_cases import (
    ARCS,
    Story,
    Stream,
    capacities,
    packed,
    slow_ends,
    slow_rates,
    stories,
    streams,
)
from tests.support.depth import examples

NOBODY = np.empty(0, dtype=np.int64)


@given(capacities(), streams(10))
def test_every_stream_has_a_bottleneck(capacity: Floats, told: list[Stream]) -> None:
    """No arc is overfull; each stream is at its limit or among the fastest on a full arc."""
    some = packed(told)
    rate, holder = fair_rates(capacity, some)
    load = some.loads(rate, ARCS)
    assert (load <= capacity * (1 + 1e-8) + 1e-9).all()
    level = rate / some.weight
    for row, stream in enumerate(told):
        if holder[row] < 0:
            assert rate[row] == pytest.approx(stream.limit)
            continue
        arc = int(holder[row])
        assert load[arc] == pytest.approx(capacity[arc])
        others = [r for r, other in enumerate(told) if arc in dict(other.uses)]
        assert level[row] == pytest.approx(max(level[others]))


@given(capacities(), streams(10))
def test_rates_are_those_of_textbook_filling(capacity: Floats, told: list[Stream]) -> None:
    """Filling many arcs in one round gives the rates of filling one after the other."""
    rate, _ = fair_rates(capacity, packed(told))
    assert rate == pytest.approx(
        slow_rates(capacity.tolist(), told, set(range(len(told)))), abs=1e-9
    )


@settings(max_examples=examples(16))
@given(capacities(), streams(30), st.data())
def test_rates_kept_are_rates_found_anew(
    capacity: Floats, told: list[Stream], data: st.DataObject
) -> None:
    """After streams and capacities change, kept rates are those of a complete filling."""
    some = packed(told)
    shares = Shares(capacity, some)
    shares.change(np.arange(len(told)), NOBODY)
    for _ in range(data.draw(st.integers(1, 6))):
        if data.draw(st.booleans()):
            arc = np.array([data.draw(st.integers(0, ARCS - 1))])
            capacity = capacity.copy()
            capacity[arc] = float(data.draw(st.integers(0, 40)))
            shares.resize(arc, capacity[arc])
        else:
            flipped = data.draw(st.sets(st.integers(0, len(told) - 1), max_size=2))
            rows = np.array(sorted(flipped), dtype=np.int64)
            shares.change(rows[~shares.active[rows]], rows[shares.active[rows]])
        active = np.flatnonzero(shares.active)
        found, _ = fair_rates(capacity, some.take(active))
        assert shares.rate[active] == pytest.approx(found, rel=1e-6, abs=1e-6)
        assert shares.load == pytest.approx(
            some.take(active).loads(found, ARCS), rel=1e-6, abs=1e-6
        )


@settings(max_examples=examples(16))
@given(capacities(), stories())
def test_every_end_is_where_a_slow_twin_has_it(capacity: Floats, story: Story) -> None:
    """Each activity ends when the slow reference says, or never if it says never."""
    run = FluidSimulation(capacity, story.packed()).run()
    assert run.end.tolist() == pytest.approx(
        slow_ends(capacity.tolist(), story), rel=1e-6, abs=1e-6
    )


@settings(max_examples=examples(10))
@given(capacities(), stories())
def test_what_is_sent_is_what_crosses(capacity: Floats, story: Story) -> None:
    """Loads over time add up to what streams have sent on each arc; no arc is overfull."""
    schedule, timeline = story.packed(), Timeline(0.7)
    world = FluidSimulation(capacity, schedule, timeline=timeline)
    end = world.run().end
    reached = max([0.0, *end[np.isfinite(end)].tolist()])
    world.advance(reached)
    loads = timeline.loads()
    if not len(loads):
        return
    assert (loads <= capacity * (1 + 1e-6) + 1e-9).all()
    sent = schedule.gbit - world.left()
    used = schedule.streams.part * sent[schedule.streams.owner()]
    crossed = np.bincount(schedule.streams.arcs, used, minlength=ARCS)
    lengths = np.minimum(timeline.begins + 0.7, world.now) - timeline.begins
    assert (loads * lengths[:, None]).sum(axis=0) == pytest.approx(crossed, rel=1e-6, abs=1e-6)


@settings(max_examples=examples(10))
@given(capacities(), stories(), st.floats(0.1, 5.0))
def test_stopping_to_look_changes_nothing(capacity: Floats, story: Story, step: float) -> None:
    """Advancing in steps, and setting an arc to the capacity that it has, changes no result."""
    whole, halting = (
        FluidSimulation(capacity, story.packed()),
        FluidSimulation(capacity, story.packed()),
    )
    for stop in range(5):
        halting.advance(stop * step)
        halting.resize(np.array([0]), capacity[:1])
    assert halting.run().end == pytest.approx(whole.run().end, rel=1e-6, abs=1e-6)


@settings(max_examples=examples(10))
@given(capacities(), stories())
def test_the_same_twice(capacity: Floats, story: Story) -> None:
    """Two runs of the same schedule have the same ends and events."""
    one, two = (FluidSimulation(capacity, story.packed()).run() for _ in range(2))
    assert (one.end.tolist(), one.events) == (two.end.tolist(), two.events)


@settings(max_examples=examples(10))
@given(capacities(), stories(), st.floats(0.1, 5.0))
def test_the_same_way_again_changes_nothing(capacity: Floats, story: Story, stop: float) -> None:
    """Streams that are redirected to their own paths keep what they sent and end as before."""
    whole, redirected = (FluidSimulation(capacity, story.packed()) for _ in range(2))
    redirected.advance(stop)
    redirected.redirect(packed(story.streams))
    assert redirected.run().end == pytest.approx(whole.run().end, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_rates_kept_on_a_large_graph(seed: int) -> None:
    """Kept rates stay right while 800 streams over 300 arcs come and go."""
    random = np.random.default_rng(seed)
    count, arcs = 800, 300
    lengths = random.integers(1, 5, count)
    first = np.concatenate([[0], np.cumsum(lengths)])
    uses = np.concatenate([random.choice(arcs, size, replace=False) for size in lengths])
    limit = np.where(random.random(count) < 0.2, random.uniform(1, 30, count), np.inf)
    weight = random.integers(1, 4, count).astype(float)
    some = Streams(weight, limit, first, uses, random.choice([0.5, 1.0, 2.0], len(uses)))
    capacity = random.uniform(10, 100, arcs)
    shares = Shares(capacity, some)
    shares.change(np.flatnonzero(random.random(count) < 0.5), NOBODY)
    for _ in range(60):
        rows = random.choice(count, 3, replace=False)
        shares.change(rows[~shares.active[rows]], rows[shares.active[rows]])
        active = np.flatnonzero(shares.active)
        found, _ = fair_rates(capacity, some.take(active))
        assert shares.rate[active] == pytest.approx(found, rel=1e-5, abs=1e-9), f"seed {seed}"
