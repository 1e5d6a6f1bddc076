from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.serve.door.frames import (
    MOST_BYTES,
    MOST_FIELDS,
    OVERHEAD,
    PREFACE,
    TABLE,
    Answers,
    Frames,
    Headers,
    Unbearable,
)
from tests.support.depth import examples
from tests.support.raw_http2 import (
    CONTINUATION,
    END_HEADERS,
    HEADERS,
    PING,
    RESET,
    call,
    field,
    frame,
)

DATA = 0
FIRST_KEPT = 62

ENTRIES = st.lists(
    st.one_of(
        st.tuples(st.binary(min_size=1, max_size=300), st.binary(max_size=5000), st.booleans()),
        st.integers(0, 8),
    ),
    max_size=150,
)
"""Fields: literals (name, value, whether kept), or references to kept ones, newest first."""


@pytest.mark.deep
@settings(max_examples=examples(60, 2000))
@given(ENTRIES)
def test_what_passes_is_no_larger_than_it_may_be(
    entries: list[int | tuple[bytes, bytes, bool]],
) -> None:
    """A block passes exactly if its fields, by a table kept as in RFC 7541, are within limits."""
    table: list[tuple[bytes, bytes]] = []
    block, sizes = b"", []
    for entry in entries:
        if isinstance(entry, int):
            if entry >= len(table):
                continue
            name, value = table[entry]
            block += bytes([0x80 | (FIRST_KEPT + entry)])
        else:
            name, value, keep = entry
            block += field(name, value, keep=keep)
            if keep:
                table.insert(0, (name, value))
                while sum(len(n) + len(v) + OVERHEAD for n, v in table) > TABLE:
                    table.pop()
        sizes.append(len(name) + len(value) + OVERHEAD)
    bearable = len(sizes) <= MOST_FIELDS and sum(sizes) <= MOST_BYTES
    try:
        Headers().weigh(block)
    except Unbearable:
        assert not bearable
    else:
        assert bearable


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",
        b"\xff\xff\xff\xff\xff\xff\x7f",
        b"\x40\x05ab",
        b"\x40",
        b"\x00\x01a\x7f\xff",
        b"\xff",
    ],
)
def test_malformed_headers(block: bytes) -> None:
    """Entry 0, endless numbers, and strings beyond the end of the block are refused."""
    with pytest.raises(Unbearable):
        Headers().weigh(block)


def test_huffman_counts_for_the_most() -> None:
    """A coded string may stand for 8/5 of its bytes, so it counts for that many."""
    headers = Headers()
    value = b"\xff" * 2000  # at most 3,200 decoded
    coded = b"\x40\x01x\xff" + bytes([(2000 - 127) % 128 + 128, (2000 - 127) // 128]) + value
    headers.weigh(coded)
    with pytest.raises(Unbearable):
        headers.weigh(b"\xbe" * 6)
    headers.weigh(b"\xbf")  # not in the table, so it counts as the largest possible entry


SAID = PREFACE + b"".join(
    [
        frame(HEADERS, END_HEADERS, 1, call()),
        frame(DATA, 0, 1, b"d" * 40),
        frame(PING, 0, 0, b"12345678"),
        frame(HEADERS, 0, 3, call()[:9]),
        frame(CONTINUATION, 0, 3, call()[9:20]),
        frame(CONTINUATION, END_HEADERS, 3, call()[20:]),
        frame(HEADERS, END_HEADERS | 0x8 | 0x20, 5, b"\x02\0\0\0\0\0" + call() + b"\0\0"),
        frame(DATA, 1, 1),
        frame(RESET, 0, 3, bytes(4)),
    ]
)


@pytest.mark.deep
@settings(max_examples=examples(40, 2000))
@given(st.lists(st.integers(0, len(SAID)), max_size=30).map(sorted))
def test_however_it_is_cut_it_passes_as_it_is(cuts: list[int]) -> None:
    """Each byte passes once and in order, and calls begin and are reset where they do."""
    frames, out = Frames(), b""
    began, reset = [], []
    for low, high in zip([0, *cuts], [*cuts, len(SAID)], strict=True):
        for part in frames.take(SAID[low:high]):
            out += part.data
            began += [part.began] if part.began else []
            reset += [part.reset] if part.reset else []
    assert out == SAID
    assert (began, reset) == ([1, 3, 5], [3])


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        PREFACE + frame(HEADERS, 0, 1, call()) + frame(PING, 0, 0, bytes(8)),
        PREFACE + frame(CONTINUATION, END_HEADERS, 1, call()),
        PREFACE + frame(PING, 0, 0, bytes(20_000)),
        PREFACE + frame(HEADERS, 0, 1, call()) + frame(CONTINUATION, 0, 1, b"\x90" * 9000) * 2,
        PREFACE + frame(HEADERS, END_HEADERS | 0x8, 1, b"\xff\0"),
        PREFACE + frame(HEADERS, END_HEADERS, 1, b"\x90" * 129),
    ],
)
def test_what_is_not_borne(said: bytes) -> None:
    """Refused are other protocols, and headers that are interrupted, without begin or too many."""
    with pytest.raises(Unbearable):
        Frames().take(said)


@given(st.lists(st.integers(0, 60), max_size=10).map(sorted))
def test_answers_are_told_however_they_are_cut(cuts: list[int]) -> None:
    """Frames of headers and resets give their calls, and frames of data do not."""
    said = (
        frame(HEADERS, 0, 1, b"h" * 7) + frame(DATA, 0, 3, b"d" * 9) + frame(RESET, 0, 5, bytes(4))
    )
    ends = [min(cut, len(said)) for cut in cuts]
    answers, told = Answers(), []
    for low, high in zip([0, *ends], [*ends, len(said)], strict=True):
        told += answers.take(said[low:high])
    assert told == [1, 5]


def test_many_small_frames_are_read_later() -> None:
    """Every frame takes its turn, even if it has no data."""
    now = 0.0
    frames = Frames(lambda: now)
    frames.take(PREFACE + frame(PING, 0, 0, bytes(8)) * 4000)
    assert frames.rest() == 0
    frames.take(frame(PING, 0, 0, bytes(8)) * 2000)
    assert frames.rest() == pytest.approx(1.0)
    now = 1.0
    assert frames.rest() == 0
