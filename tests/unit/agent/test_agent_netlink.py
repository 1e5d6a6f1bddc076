"""Errors of the kernel, read from the bytes of its answers."""

from __future__ import annotations

import errno
import os
import struct

from hypothesis import example, given
from hypothesis import strategies as st

from heddle_agent import netlink

ERROR = 2


def refusal(code: int) -> bytes:
    """Return the kernel's answer to request 7: an error code, or 0 for success."""
    request = struct.pack("=IHHII", 16, 0, 0, 7, 0)
    return struct.pack("=IHHIIi", 36, ERROR, 0, 7, 0, code) + request


@given(st.integers(-(2**31), 2**31 - 1))
@example(-(2**31))
@example(0)
def test_every_code_is_told(code: int) -> None:
    """Every failure code is reported with its request and a text."""
    found = list(netlink._errors(refusal(code)))
    assert [(error.errno, error.sequence) for error in found] == ([(-code, 7)] if code else [])
    assert all(str(error) for error in found)


def test_errors_have_the_words_of_the_system() -> None:
    """The system's text is used where the kernel gives none."""
    (error,) = netlink._errors(refusal(-errno.ENOENT))
    assert os.strerror(errno.ENOENT) in str(error)
