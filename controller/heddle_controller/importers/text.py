"""Text of a file, under a ceiling."""

from __future__ import annotations

from pathlib import Path

from heddle_controller.model.errors import refuse
from heddle_controller.model.files.content import MEBIBYTE, open_content

_CEILING = 64 * MEBIBYTE


def read_text(path: Path, what: str) -> str:
    """The text in a file, plain or gzip; ``what`` is what it should be.

    Raises:
        InputError: the file cannot be read, is larger than ``_CEILING``, is not UTF-8.
    """
    with open_content(path, _CEILING) as file:
        content = file.read(_CEILING + 1)
    if len(content) > _CEILING:
        reason = f"larger than {_CEILING // MEBIBYTE} MiB unpacked; is it the right file?"
        raise refuse(str(path), "", reason)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise refuse(
            str(path), "", f"neither {what} nor UTF-8 text; is it the right file?"
        ) from error
