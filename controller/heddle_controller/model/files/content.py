"""Read files, plain or gzip, up to a size limit, and write files whole or not at all.

The first bytes of a file show whether it is gzip, not its name, because people rename files. The
limit counts unpacked bytes. So 100 MB of garbage, or a small archive that unpacks to the size of
the memory, gets a clear refusal. Content that cannot be JSON is refused by its first bytes.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import orjson

from heddle_controller.model.errors import InputError, refuse

GZIP_MAGIC = b"\x1f\x8b"
BOM = b"\xef\xbb\xbf"
MEBIBYTE = 1 << 20
_PEEK = 4096

Content = io.BufferedReader | gzip.GzipFile


@contextmanager
def open_content(path: Path, ceiling: int) -> Iterator[Content]:
    """Open a file, plain or gzip, to read its unpacked content once from the start.

    Raises:
        InputError: when opening or while reading: the file does not exist, cannot be read, is
            empty, is broken gzip, or has more than ``ceiling`` bytes on disk. The caller has to
            limit the unpacked bytes.
    """
    try:
        with path.open("rb") as file:
            if (size := os.fstat(file.fileno()).st_size) > ceiling:
                raise _too_large(path, f"{size / MEBIBYTE:.0f} MiB", ceiling)
            head = file.peek(_PEEK)
            if not head:
                raise refuse(str(path), "", "the file is empty")
            packed = head.startswith(GZIP_MAGIC)
            yield gzip.GzipFile(fileobj=file) if packed else file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise refuse(str(path), "", f"broken gzip ({error}); pack the file again") from error
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise refuse(str(path), "", reason) from error


def read_json(path: Path, ceiling: int) -> object:
    """Return the JSON object in a file, plain or gzip.

    Raises:
        InputError: as ``open_content``; or the file has more than ``ceiling`` bytes unpacked, is
            not a JSON object, or is malformed JSON.
    """
    with open_content(path, ceiling) as file:
        content = bytearray(file.read(_PEEK))
        if not content:
            raise refuse(str(path), "", "the file is empty")
        if content.startswith(BOM):
            del content[: len(BOM)]
        start = content.lstrip()
        if not start.startswith(b"{") and (start or len(content) < _PEEK):
            raise refuse(str(path), "", "not a JSON object; it must start with '{'")
        _read_on(file, content, path, ceiling)
    return _parse(content, path)


def _read_on(file: Content, content: bytearray, path: Path, ceiling: int) -> None:
    """Append the rest of a file to ``content``. Raises ``InputError`` if that is too large."""
    # In pieces: reading "up to the ceiling" at once would allocate that much memory.
    while len(content) <= ceiling and (more := file.read(MEBIBYTE)):
        content += more
    if len(content) > ceiling:
        raise _too_large(path, "larger", ceiling)


def _parse(content: bytearray, path: Path) -> object:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        if b"NaN" in content or b"Infinity" in content:
            return _parse_leniently(content, path)
        raise _malformed(path, error) from error


def _parse_leniently(content: bytearray, path: Path) -> object:
    """Parse JSON that contains NaN or Infinity, so that later checks can name the record.

    Neither is JSON, but many programs write them.
    """
    try:
        return json.loads(content)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _malformed(path, error) from error


def _malformed(path: Path, error: ValueError) -> InputError:
    where = (
        f"line {error.lineno}, column {error.colno}"
        if isinstance(error, json.JSONDecodeError)
        else ""
    )
    what = error.msg if isinstance(error, json.JSONDecodeError) else "not UTF-8 text"
    return refuse(str(path), where, f"malformed JSON: {what}")


def _too_large(path: Path, size: str, ceiling: int) -> InputError:
    reason = f"the file is {size}, the ceiling is {ceiling / MEBIBYTE:g} MiB; is it the right file?"
    return refuse(str(path), "", reason)


def write_content(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file whole or not at all, as gzip if its name ends in ``.gz``.

    A pipe, a terminal or another file that is not regular is written directly, and never as gzip.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            _write(path, parts, packed=False)
            return
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            _write(beside, parts, packed=path.name.endswith(".gz"))
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        reason = f"cannot be written: {error.strerror or error}"
        raise refuse(str(path), "", reason) from error


def _write(path: Path, parts: tuple[bytes | memoryview, ...], *, packed: bool) -> None:
    with path.open("wb") as file:
        if not packed:
            file.writelines(parts)
            return
        # No name and no time in the header, so that the same plan gives the same bytes. Level 1,
        # because somebody waits for the plan and it compresses well at any level.
        with gzip.GzipFile("", "wb", 1, cast("io.BytesIO", file), mtime=0) as archive:
            for part in parts:
                archive.write(part)


_CEILING = 1024 * MEBIBYTE


def read_text(path: Path, what: str) -> str:
    """Return the text in a file, plain or gzip.

    ``what`` says for error messages what the file should have been, for example "JSON".

    Raises:
        InputError: the file cannot be read, is larger than ``_CEILING``, or is not UTF-8.
    """
    content = bytearray()
    with open_content(path, _CEILING) as file:
        _read_on(file, content, path, _CEILING)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise refuse(
            str(path), "", f"neither {what} nor UTF-8 text; is it the right file?"
        ) from error
