"""Drills that cannot be played are refused before anything runs, with the line and a cure."""

from __future__ import annotations

from pathlib import Path

import pytest

from heddle_controller.model.errors import InputError
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_emulator.drill.load import load_scenario
from heddle_emulator.drill.scenario import Bundle, Point, Scenario, StepKind, When
from heddle_emulator.drill.worlds import FLUID, NETNS, fit
from heddle_emulator.topology import hashing, three_tier

HEAD = """drill: example
proves: something
worlds: [fluid, netns]
fabric:
  three_tier: {zones: 2, leaves: 2, spines: 2, nics_per_leaf: 2, cores: 2, nics_per_host: 1}
jobs:
  - job: ring
    hosts: [z0-l0-h0, z0-l1-h0]
    gpus_per_host: 1
    parallelism: {dp: 2}
    collectives: [{operation: all_reduce, group: dp, bytes: 1MB}]
    compute: 5ms
  - {job: late, hosts: [z0-l0-h1, z1-l0-h0], gpus_per_host: 1, parallelism: {dp: 2}}
demands:
  - {from: z0-l0, to: z1-l0, gbps: 10}
probes:
  - {probe: one, from: z0-l0-h0-n0, to: z1-l0-h0-n0, rate: 100}
control: {plan: 30ms}
"""
TAIL = """
expect:
  - {stranded: one, most: 0}
"""


def _load(folder: Path, steps: str, tail: str = TAIL, head: str = HEAD) -> Scenario:
    path = folder / "drill.yaml"
    path.write_text(f"{head}timeline:\n{steps.rstrip()}{tail}")
    return load_scenario(path)


def _line_of(path: Path, part: str) -> int:
    lines = path.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if part in line)


def test_every_step_is_understood(tmp_path: Path) -> None:
    """The parts of a step arrive in its fields. A flap becomes cuts and mends."""
    scenario = _load(
        tmp_path,
        """
  - {at: 10ms, flap: z0-l0 to z0-s0, period: 20ms, count: 2}
  - {at: 100ms, silence: z0-l0 to z0-s0, share: 0.25}
  - {at: 110ms, degrade: z0-l0 to z0-s1, gbps: 50}
  - {at: 120ms, cut: uplinks of z0}
  - {at: 125ms, submit: late}
  - {at: 130ms, kill: controller, point: commit}
  - {at: 140ms, skew: z0-l0, by: -1h}
  - {at: 150ms, part: [controller, z0-l1]}
  - {at: 160ms, replace: z0-l1-h0, with: z1-l1-h1}
  - {at: 170ms, finish: late}
""",
        "\nexpect:\n  - {slowest: all, when: after, least: 0.5}\n",
    )
    first = scenario.timeline[:4]
    assert [step.at for step in first] == pytest.approx([0.01, 0.02, 0.03, 0.04])
    assert [step.kind for step in first] == [StepKind.CUT, StepKind.MEND] * 2
    by_kind = {step.kind: step for step in scenario.timeline[4:]}
    assert by_kind[StepKind.SILENCE].share == 0.25
    assert by_kind[StepKind.DEGRADE].gbps == 50
    assert by_kind[StepKind.CUT].targets == (Bundle(True, "z0"),)
    assert by_kind[StepKind.KILL].point is Point.COMMIT
    assert by_kind[StepKind.SKEW].by == -3600
    assert by_kind[StepKind.PART].targets == ("controller", "z0-l1")
    assert by_kind[StepKind.REPLACE].other == "z1-l1-h1"
    assert scenario.control.plan == pytest.approx(0.03)
    assert [spec.compute for spec in scenario.jobs] == [0.005, 0.0]
    assert scenario.expectations[0].when is When.AFTER
    assert scenario.world == FLUID
    fit(scenario, FLUID)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ("{at: 1s, flap: z0-l0 to z0-s0}", "has no period; give a number and its unit"),
        ("{at: 1s, flap: z0-l0 to z0-s0, period: 1s, count: 9999}", "at most 1,000"),
        ("{at: 1s, silence: z0-l0 to z0-s0, share: 2}", "above 0 and at most 1"),
        ("{at: 1s, degrade: z0-l0 to z0-s0}", "say what the cable carries"),
        ("{at: 1s, slow: z0-l0}", "has no by; give a number and its unit"),
        ("{at: 1s, slow: z0-l0, by: -5ms}", "by is negative; say how much later"),
        ("{at: 1s, slow: z0-l0, by: 5ms, share: 1}", "unknown key 'share'"),
        ("{at: 1s, kill: controller, point: lunch}", "give one of intent, plan"),
        ("{at: 1s, kill: z0-l0, point: plan}", "only the controller dies at a point"),
        ("{at: 1s, part: [controller]}", "names 1; name two"),
        ("{at: 1s, part: [controller, z9]}", "no switch z9"),
        ("{at: 1s, fail: fabric}", "name the store"),
        ("{at: 1s, crash: z0-l0 to z0-s0}", "is a cable"),
        ("{at: 1s, cut: links of nowhere}", "a switch or a zone"),
        ("{at: 1s, cut: uplinks of c0}", "a switch or a zone"),
        ("{at: 1s, submit: nobody}", "no job nobody"),
        ("{at: 1s, replace: z1-l1-h1, with: z1-l1-h0}", "no job has host z1-l1-h1"),
        ("{at: 1s, replace: z0-l0-h0, with: moon}", "no host moon"),
        ("{at: 1s, start: z0-l0, empty: perhaps}", "give true or false"),
    ],
)
def test_steps_that_make_no_sense(tmp_path: Path, steps: str, said: str) -> None:
    """The message names the line and says what is wrong or what would be right."""
    with pytest.raises(InputError) as refused:
        _load(tmp_path, f"  - {steps}\n")
    told = [str(problem) for problem in refused.value.problems]
    line = _line_of(tmp_path / "drill.yaml", steps)
    assert any(said in text for text in told), told
    assert any(f"(line {line})" in text for text in told), told


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ("cut: z0-l0 to z0-s0 | cut: z0-l0 to z0-s0", "cut already, since line"),
        ("cut: links of z0-l0 | cut: z0-l0 to z0-s0", "cut already, since line"),
        ("cut: z0-l0 to z0-s0 | silence: z0-l0 to z0-s0", "cut already, since line"),
        ("mend: z0-l0 to z0-s0", "is whole then"),
        ("mend: all", "nothing is broken then"),
        ("kill: controller | kill: controller", "stands already, since line"),
        ("start: controller", "kill controller does not stand before it"),
        ("kill: z0-l0 | hang: z0-l0", "is killed since line"),
        ("crash: z0-l0 | kill: z0-l0", "is without power since line"),
        (
            "fail: store | kill: controller | start: controller",
            "serves only with its store, which fails since line",
        ),
        ("reboot: z0-s0", "crash z0-s0 does not stand"),
        ("part: [z0-l0, controller] | part: [controller, z0-l0]", "stands already"),
        ("join: [z0-l0, controller]", "does not stand before it"),
        ("restore: store", "does not stand before it"),
        ("submit: late | submit: late", "runs then; finish it before"),
        ("finish: late | submit: late", "does not run then; submit it before"),
        ("replace: z0-l0-h0, with: z0-l1-h0", "has z0-l1-h0 already"),
    ],
)
def test_steps_that_contradict_others(tmp_path: Path, steps: str, said: str) -> None:
    """The message says what the earlier steps have done, and often in which line."""
    told = [f"  - {{at: {100 + 100 * n}ms, {s}}}" for n, s in enumerate(steps.split(" | "))]
    with pytest.raises(InputError) as refused:
        _load(tmp_path, "\n".join(told) + "\n")
    assert any(said in str(problem) for problem in refused.value.problems), refused.value.problems


def test_steps_of_one_moment_that_do_not_undo_each_other(tmp_path: Path) -> None:
    """Steps on one target at the same time are refused only if one undoes the other."""
    steps = """
  - {at: 100ms, part: [controller, z0-l0]}
  - {at: 100ms, hang: controller}
  - {at: 200ms, part: [controller, z0-l1]}
  - {at: 200ms, join: [z0-l0, controller]}
  - {at: 200ms, resume: controller}
"""
    assert len(_load(tmp_path, steps).timeline) == 5
    both = """
  - {at: 100ms, part: [controller, z0-l0]}
  - {at: 100ms, join: [z0-l0, controller]}
"""
    with pytest.raises(InputError, match="part and join controller and z0-l0 at the same time"):
        _load(tmp_path, both)


def test_a_set_up_knows_no_hops(tmp_path: Path) -> None:
    """No probe has a path when the set-up is done, so a hop is refused there."""
    with pytest.raises(InputError, match=r"setup \(line 20\): hop 2 of one: probes take no path"):
        _load(tmp_path, "  []", head=f"{HEAD}setup:\n  - {{cut: hop 2 of one}}\n")


def test_what_is_worse_may_follow(tmp_path: Path) -> None:
    """A degraded cable may become silent and a silent one may be cut. One mend repairs all."""
    steps = ["degrade: {}, gbps: 10", "degrade: {}, gbps: 5", "silence: {}", "cut: {}", "mend: {}"]
    cable = "z0-l0 to z0-s0"
    told = [f"  - {{at: {100 + n}ms, {s.format(cable)}}}" for n, s in enumerate(steps)]
    assert len(_load(tmp_path, "\n".join(told) + "\n").timeline) == 5


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ("{iteration: one, most: 1}", "one is not a job"),
        ("{makespan: ring, most: 1s}", "has no end; give it iterations"),
        ("{lost: all, when: after, most: 1}", "is of a whole run; when goes with"),
        ("{slowest: nobody, least: 1}", "no probe nobody"),
        ("{slowest: all, when: soon, least: 1}", "give one of before, during, after"),
    ],
)
def test_expectations_that_cannot_be_evaluated(tmp_path: Path, expected: str, said: str) -> None:
    """The error comes when the file is read, not after minutes of play."""
    with pytest.raises(InputError) as refused:
        _load(tmp_path, "  - {at: 1s, cut: z0-l0 to z0-s0}\n", f"\nexpect:\n  - {expected}\n")
    assert any(said in str(problem) for problem in refused.value.problems), refused.value.problems


HASHING = """
drill: hashing
proves: What cannot be where switches only hash is refused
worlds: [netns, fluid]
forwarding: ecmp
fabric:
  clos: {leaves: 2, spines: 2, nics_per_leaf: 1, nics_per_host: 1}
demands:
  - {from: l0-h0-n0, to: l1-h0-n0, gbps: 400}
probes:
  - {probe: qps, each: demands, rate: 100}
expect: [{lost: qps, most: 0}]
"""


@pytest.mark.parametrize(
    ("world", "more", "said"),
    [
        (NETNS, "setup: [{kill: controller}]", "nothing of Heddle runs here to kill"),
        (NETNS, "timeline: [{at: 1s, drain: s0}]", "nothing of Heddle runs here to drain"),
        (NETNS, "looped", "leave looped out"),
        (NETNS, "lab: {controllers: 2}", "hosts steer without a controller"),
        (FLUID, "", "fluid has no hosts that probe"),
    ],
)
def test_what_hosts_that_steer_cannot_be_asked_for(
    tmp_path: Path, world: str, more: str, said: str
) -> None:
    """Switches that only hash have no agent, and virtual time has no hosts that probe."""
    path = tmp_path / "hashing.yaml"
    text = HASHING.replace("lost", more) if more == "looped" else f"{HASHING}{more}\n"
    path.write_text(text)
    scenario = load_scenario(path)
    assert scenario.steers
    with pytest.raises(InputError) as refused:
        fit(scenario, world)
    (problem,) = refused.value.problems
    assert said in str(problem)


def test_fabrics_of_switches_of_both_kinds_are_not_for_the_lab(tmp_path: Path) -> None:
    """A fabric file in which only the first zone hashes is refused."""
    fabric = hashing(
        three_tier(zones=2, leaves=1, spines=1, nics_per_leaf=1, cores=2, nics_per_host=1), ["z0"]
    )
    save_fabric_file(fabric, tmp_path / "fabric.json")
    path = tmp_path / "mixed.yaml"
    lines = [line for line in HASHING.splitlines() if "clos:" not in line and "ecmp" not in line]
    text = "\n".join(lines).replace("fabric:", "fabric: fabric.json")
    path.write_text(text.replace("l0-h0-n0", "z0-l0-h0-n0").replace("l1-h0-n0", "z1-l0-h0-n0"))
    with pytest.raises(InputError, match="only some switches hash"):
        fit(load_scenario(path), NETNS)


@pytest.mark.parametrize(
    ("steps", "tail", "said"),
    [
        ("cut: z0-l0 to z0-s0", TAIL, "netns has no jobs"),
        ("degrade: z0-l0 to z0-s0, gbps: 9", TAIL, "give lab: {rate_mbit: 20}"),
        ("submit: late", TAIL, "netns cannot submit; leave it out, or play it in fluid"),
        ("skew: z0-l0, by: 1h", TAIL, "netns has one clock; skew the controller"),
        (
            "cut: z0-l0 to z0-s0",
            "\nexpect:\n  - {gap: plan, most: 0}\n",
            "netns cannot measure gap; fluid can",
        ),
        (
            "cut: z0-l0 to z0-s0",
            "\nexpect:\n  - {slowest: all, when: after, least: 1}\n",
            "leave when and all out",
        ),
    ],
)
def test_a_world_refuses_what_it_has_not(tmp_path: Path, steps: str, tail: str, said: str) -> None:
    """The error names the line, and the world in which the drill can be played if there is one."""
    scenario = _load(tmp_path, f"  - {{at: 1s, {steps}}}\n", tail)
    with pytest.raises(InputError) as refused:
        fit(scenario, NETNS)
    told = [str(problem) for problem in refused.value.problems]
    assert any(said in text for text in told), told
    assert all("(line " in text for text in told), told
