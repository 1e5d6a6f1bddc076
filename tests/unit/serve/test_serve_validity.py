"""When a certificate counts as about to end."""

from __future__ import annotations

import pytest

from heddle_controller.serve.doctor.validity import ends_soon, of_agents, of_tokens
from heddle_controller.serve.security.caller import Caller, Role
from heddle_controller.serve.security.files import Grant
from heddle_controller.serve.security.validity import Validity, validity_of

DAY = 86400.0
NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("whole", "left", "soon"),
    [
        (365, 31, False),
        (365, 29, True),
        (365, -1, True),
        (90, 29, False),  # such a certificate is mostly renewed 30 days before its end
        (90, 17, True),
        (1 / 24, 0.3 / 24, False),
        (1 / 24, 0.1 / 24, True),
    ],
)
def test_a_certificate_is_about_to_end_if_renewal_is_late(
    whole: float,
    left: float,
    soon: bool,  # noqa: FBT001 - a parameter
) -> None:
    """What counts is the part of its time that is left, and never more than 30 days."""
    ends = NOW + left * DAY
    assert ends_soon(Validity(ends - whole * DAY, ends), NOW) == soon


def test_what_is_no_certificate_has_no_validity() -> None:
    """Garbage neither ends nor breaks the examination."""
    assert validity_of(b"no certificate") is None
    assert not [*of_agents([("l0", b"no certificate"), ("l1", b"")], NOW)]


def test_tokens_that_have_ended_or_end_within_a_week_are_named() -> None:
    """The one that ends first comes first, with its time; tokens that last longer are not named."""
    days = {"slurm": 3, "kueue": -1, "grafana": 30}
    grants = [
        Grant(name, Caller(Role.READER, ""), NOW + left * DAY, "") for name, left in days.items()
    ]
    (told,) = of_tokens(grants, NOW)
    text = "2 tokens must be replaced: kueue, slurm; the first has ended at 2027-01-14 08:00:00Z."
    assert (told.about, told.text) == ("tokens", text)
    assert not [*of_tokens(grants[2:], NOW)]
