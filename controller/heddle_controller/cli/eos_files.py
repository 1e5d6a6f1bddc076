"""Text for switches, beside what stood there before."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import unified_diff
from pathlib import Path
from urllib.parse import quote

from heddle_controller.importers.text import read_text
from heddle_controller.model.errors import refuse
from heddle_controller.model.files.content import write_content


def write_texts(texts: Mapping[str, str], folder: Path) -> list[str]:
    """Write SWITCH.eos for each switch, and in SWITCH.eos.diff what of it is new.

    The difference is to the text that stood there before; it is empty where that was the
    same. Gives the switches whose text is not what it was.

    Raises:
        InputError: a file cannot be read or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refuse(str(folder), "", f"cannot be made: {error.strerror or error}") from error
    changed = []
    for switch, text in texts.items():
        path = folder / f"{quote(switch, safe='')}.eos"
        before = read_text(path, "text for a switch") if path.exists() else ""
        lines = before.splitlines(keepends=True), text.splitlines(keepends=True)
        told = "".join(unified_diff(*lines, f"{path.name}, before", path.name))
        write_content(path.with_name(f"{path.name}.diff"), told.encode())
        write_content(path, text.encode())
        if told:
            changed.append(switch)
    return changed
