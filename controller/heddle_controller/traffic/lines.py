"""Numbered lines of a text file that is not trusted, with limits on its size."""

from __future__ import annotations

from pathlib import Path

from heddle.text import integer, number
from heddle_controller.model.errors import InputError, refuse
from heddle_controller.model.files.content import MEBIBYTE, Content

MOST_BYTES_OF_TRACE = 1024 * MEBIBYTE
"""Most bytes of a trace, unpacked. A recorded iteration of 100,000 ranks stays far below."""
_MAX_LINE = 4 * MEBIBYTE
"""Most bytes of a line. The first line of a section names all its ranks."""


class Lines:
    """The lines of a text file; ``number`` is that of the last line given, from 1.

    ``cut`` says that this line has no end, as only the last line of a file may.

    Raises:
        InputError: by iteration, if a line or the file is too long, or is not UTF-8 text.
    """

    def __init__(self, file: Content, path: Path) -> None:
        self._file = file
        self._left = MOST_BYTES_OF_TRACE
        self.path = path
        self.number = 0
        self.cut = False

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> str:
        raw = self._file.readline(_MAX_LINE + 1)
        if not raw:
            raise StopIteration
        self.number += 1
        self.cut = not raw.endswith(b"\n")
        self._left -= len(raw)
        if len(raw) > _MAX_LINE or self._left < 0:
            raise self.refuse("too long for a trace; is it the right file?")
        try:
            return raw.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise self.refuse("not UTF-8 text; is it the right file?") from error

    def refuse(self, reason: str) -> InputError:
        """Return an error about the last line given, for the caller to raise."""
        return refuse(str(self.path), f"line {self.number}", reason)

    def size(self, text: str, field: str) -> int:
        """Return a number of bytes, an integer of 0 or more.

        Raises:
            InputError: the text is anything else; ``field`` is its name in the message.
        """
        try:
            value = number(text)
        except ValueError:
            value = -1.0
        if not 0 <= value < 1 << 62 or value != int(value):
            raise self.refuse(f"{field} is {text!r}; give a number of bytes, 0 or more")
        return integer(text) if text.strip().isdecimal() else int(value)
