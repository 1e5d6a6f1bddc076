from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from heddle.v1.fabric_pb2 import ListFabricsRequest
from heddle_controller.model.errors import InputError
from heddle_controller.serve.errors import Refusal
from heddle_controller.serve.request import Page, page


def asked(collection: str, size: int, token: str) -> Page:
    """Return the page that a request asks for."""
    request = ListFabricsRequest(page_size=size, page_token=token)
    return page(collection, request, default=10, ceiling=20)


def test_sizes_are_held_to_the_ceiling() -> None:
    """0 means the default, more than the ceiling is cut to it, and less than 0 is refused."""
    assert asked("c", 0, "").size == 10
    assert asked("c", 99, "").size == 20
    with pytest.raises(InputError, match="page_size"):
        asked("c", -1, "")


def test_a_token_goes_on_where_the_page_before_ended() -> None:
    """The token keeps name and row, and its stamp is compared."""
    first = asked("c", 0, "")
    following = asked("c", 0, first.token(30, "e1"))
    assert following.row("e1") == 30
    assert asked("c", 0, first.token("j9")).after == "j9"


def test_a_token_dies_with_its_content() -> None:
    """A stamp that has changed gives ABORTED, not a page of something else."""
    token = asked("c", 0, "").token(30, "e1")
    with pytest.raises(Refusal) as caught:
        asked("c", 0, token).row("e2")
    assert caught.value.code.name == "ABORTED"


def test_a_token_of_another_list_is_refused() -> None:
    """A filter that changes between two pages would skip records."""
    token = asked("a", 0, "").token(30)
    with pytest.raises(InputError, match="page_token"):
        asked("b", 0, token)


@given(st.text(max_size=60))
def test_no_token_makes_anything_but_a_refusal(text: str) -> None:
    """A made-up token gives an InputError."""
    assume(text)
    with pytest.raises(InputError, match="page_token"):
        asked("c", 0, text)


def test_a_row_that_is_no_number_is_refused() -> None:
    """A token with a text as its position cannot belong to a list by rows."""
    token = asked("c", 0, "").token("²", "e1")
    with pytest.raises(InputError, match="page_token"):
        asked("c", 0, token).row("e1")
