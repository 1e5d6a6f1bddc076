from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from heddle_controller.model.errors import InputError
from heddle_controller.serve.errors import Refusal
from heddle_controller.serve.request import page


def test_sizes_are_held_to_the_ceiling() -> None:
    """0 is the default, more than the ceiling is the ceiling, less than 0 is refused."""
    assert page("c", 0, "", default=10, ceiling=20).size == 10
    assert page("c", 99, "", default=10, ceiling=20).size == 20
    with pytest.raises(InputError, match="page_size"):
        page("c", -1, "", default=10, ceiling=20)


def test_a_token_goes_on_where_the_page_before_ended() -> None:
    """Name and row survive; the stamp is compared."""
    first = page("c", 0, "", default=10, ceiling=20)
    following = page("c", 0, first.token(30, "e1"), default=10, ceiling=20)
    assert following.row("e1") == 30
    assert page("c", 0, first.token("j9"), default=10, ceiling=20).after == "j9"


def test_a_token_dies_with_its_content() -> None:
    """A stamp that has changed is ABORTED, not a page of something else."""
    token = page("c", 0, "", default=10, ceiling=20).token(30, "e1")
    with pytest.raises(Refusal) as caught:
        page("c", 0, token, default=10, ceiling=20).row("e2")
    assert caught.value.code.name == "ABORTED"


def test_a_token_of_another_list_is_refused() -> None:
    """A filter that changes between two pages would skip records."""
    token = page("a", 0, "", default=10, ceiling=20).token(30)
    with pytest.raises(InputError, match="page_token"):
        page("b", 0, token, default=10, ceiling=20)


@given(st.text(max_size=60))
def test_no_token_makes_anything_but_a_refusal(text: str) -> None:
    """What a client makes up is an InputError."""
    assume(text)
    with pytest.raises(InputError, match="page_token"):
        page("c", 0, text, default=10, ceiling=20)


def test_a_row_that_is_no_number_is_refused() -> None:
    """A token whose position is text is of no list by rows."""
    token = page("c", 0, "", default=10, ceiling=20).token("²", "e1")
    with pytest.raises(InputError, match="page_token"):
        page("c", 0, token, default=10, ceiling=20).row("e1")
