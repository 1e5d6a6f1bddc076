from __future__ import annotations

import json
from typing import get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_emulator.report.evidence import Evidence, Measured
from heddle_emulator.report.plain import PlainError, from_plain, to_plain


@settings(max_examples=25)
@given(st.from_type(Evidence))
def test_evidence_comes_back_from_its_json(evidence: Evidence) -> None:
    """Evidence that is written and read is the same, except for numbers that are not finite."""
    written = json.dumps(to_plain(evidence), allow_nan=False)
    again = from_plain(Evidence, json.loads(written))
    assert json.dumps(to_plain(again)) == written


def test_what_never_came_is_null() -> None:
    """JSON has no infinity, so it is written as null and read as None."""
    measured = Measured("recovered", "", "s", "one", "", (0.5, float("inf")), max=float("inf"))
    written = to_plain(measured)
    assert (written["runs"], written["max"]) == ([0.5, None], None)
    assert from_plain(Measured, written).runs == (0.5, None)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"drill": 3}, "drill"),
        ({"held": "yes"}, "held"),
        ({"stories": [{}]}, "stories[0].title"),
        ({"stories": [{"title": "t", "events": [{"at": 0, "mark": "x", "text": ""}]}]},
         "stories[0].events[0].mark"),
        ({"measured": {}}, "measured"),
    ],
)  # fmt: skip
def test_a_wrong_form_is_refused_with_its_place(change: dict[str, object], place: str) -> None:
    """The place names the field as a reader of the file would look for it."""
    good = {"drill": "d", "proves": "", "file": "", "world": "fluid", "seed": 1, "held": True}
    from_plain(Evidence, good | {"seconds": 1})
    with pytest.raises(PlainError) as refused:
        from_plain(Evidence, good | {"seconds": 1} | change)
    assert refused.value.place == place


def test_keys_of_a_newer_version_are_passed_over() -> None:
    """Files with additional fields can still be read."""
    plain = to_plain(Measured("lost", "", "packets", "", "", (1.0,)))
    assert from_plain(Measured, plain | {"mode": 3}).runs == (1.0,)


def test_every_field_has_a_form_that_is_known() -> None:
    """Each field has a type that can be read back, even if no file has it yet."""
    for name, form in get_type_hints(Evidence).items():
        assert get_origin(form) is not list, name
        assert get_args(form) or isinstance(form, type), name
