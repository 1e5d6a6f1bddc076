"""Degrees of parallelism, and the groups of ranks that follow from them."""

from __future__ import annotations

import pytest

from heddle_controller.model.errors import InputError
from heddle_controller.model.job import Group, Job, Parallelism
from heddle_controller.traffic.groups import rank_groups, resolve_parallelism


def _job(hosts: int, gpus: int, **degrees: int) -> Job:
    return Job("j", tuple(f"h{i}" for i in range(hosts)), gpus, Parallelism(**degrees))


def test_dp_takes_the_rest() -> None:
    """128 ranks at TP 2 and PP 8 leave DP 8; all other degrees are 1."""
    found = resolve_parallelism(_job(16, 8, tp=2, pp=8))
    assert found == Parallelism(tp=2, pp=8, dp=8, cp=1, ep=1)


def test_nothing_given_is_all_dp() -> None:
    """A job that names no degree is data parallel over all its ranks."""
    assert resolve_parallelism(_job(2, 4)) == Parallelism(tp=1, pp=1, dp=8, cp=1, ep=1)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (
            _job(17, 8, tp=2, pp=8, dp=8),
            "tp 2 × dp 8 × pp 8 = 128 does not make up 17 hosts × 8 GPUs = 136 ranks; give 16",
        ),
        (
            _job(16, 8, tp=2, pp=8, dp=4),
            "tp 2 × dp 4 × pp 8 = 64, but 16 hosts × 8 GPUs = 128 ranks; dp 8 would fit",
        ),
        (
            _job(1, 8, tp=3),
            "tp 3 does not make up 1 host × 8 GPUs = 8 ranks; give degrees whose product is a mul",
        ),
        (_job(2, 8, tp=4, ep=3), "ep 3 does not divide dp 4 × cp 1 = 4; ep 2 would"),
        (_job(0, 8), "hosts: none is named"),
        (_job(1, 0), "gpus_per_host: is 0; give 1 or more"),
        (_job(1, 8, tp=-2), "parallelism: tp is -2; give 1 to 4,194,304, or leave it out"),
        (_job(1, 1 << 40), "makes 1,099,511,627,776 ranks"),
    ],
)
def test_what_does_not_multiply_is_refused(wanted: Job, told: str) -> None:
    """Degrees that do not fit are refused; the error names the job, numbers and what would fit."""
    with pytest.raises(InputError) as caught:
        resolve_parallelism(wanted)
    assert str(caught.value).startswith("job 'j': ")
    assert told in str(caught.value)


def test_order_of_the_axes() -> None:
    """The axes are tp, cp, dp and pp, innermost first; a group is a line along its axis."""
    p = Parallelism(tp=2, cp=2, dp=2, pp=2, ep=4)
    assert rank_groups(p, Group.TP)[:2].tolist() == [[0, 1], [2, 3]]
    assert rank_groups(p, Group.CP)[:2].tolist() == [[0, 2], [1, 3]]
    assert rank_groups(p, Group.DP)[:2].tolist() == [[0, 4], [1, 5]]
    assert rank_groups(p, Group.PP)[:2].tolist() == [[0, 8], [1, 9]]
    assert rank_groups(p, Group.WORLD).tolist() == [list(range(16))]


def test_experts_divide_replicas_and_contexts() -> None:
    """Expert groups are runs along dp and cp together, at one tp rank and one stage."""
    p = Parallelism(tp=2, cp=2, dp=4, pp=1, ep=4)
    assert rank_groups(p, Group.EP).tolist() == [
        [0, 2, 4, 6],
        [1, 3, 5, 7],
        [8, 10, 12, 14],
        [9, 11, 13, 15],
    ]
