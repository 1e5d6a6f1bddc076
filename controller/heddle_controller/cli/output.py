"""How commands print: tables for people, aligned lines for pipes, JSON or YAML for programs."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from functools import wraps
from threading import Timer
from typing import TYPE_CHECKING, Any, Self

import click
from google.protobuf.message import Message

from heddle.text import clean, clean_json, clean_lines

if TYPE_CHECKING:
    from rich.live import Live

_Command = Callable[..., Any]
_SOON = 1.0
"""Seconds after which a command shows on a terminal what it is doing."""
YAML = "heddle.yaml"
"""Key of click's context under which a command notes that documents are printed as YAML."""


def echo(text: str, *, err: bool = False) -> None:
    """Print one line, with control characters in names and messages made harmless."""
    click.echo(clean(text), err=err)  # noqa: TID251 - the one place


def echo_lines(text: str) -> None:
    """Print several lines that end with a newline, cleaned as by ``echo``."""
    click.echo(clean_lines(text), nl=False)  # noqa: TID251 - the one place


def echo_json(
    value: Message | Sequence[Message | Mapping[str, object]] | Mapping[str, object],
) -> None:
    """Print one JSON document on one line, or as YAML if that was asked for."""
    import orjson  # noqa: PLC0415 - so that commands that print text do not wait for it

    echo_raw_json(orjson.dumps(_plain(value)))


def echo_raw_json(document: bytes) -> None:
    """Print a JSON document as it is laid out, or as YAML if that was asked for."""
    text = clean_json(document.decode())
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get(YAML):
        text = _yaml(text)
    click.echo(text)  # noqa: TID251 - the one place


def _yaml(document: str) -> str:
    """Return a JSON document as YAML, with a marker at its start, so that several can follow."""
    import orjson  # noqa: PLC0415 - so that nobody else waits for it
    import yaml  # noqa: PLC0415 - as above

    told = yaml.safe_dump(orjson.loads(document), sort_keys=False, explicit_start=True, width=100)
    return str(told).rstrip("\n")  # ASCII only, so safe for a terminal


def format_options(command: _Command) -> _Command:
    """Add --json and --yaml to a command, which gets ``as_json`` if either is given."""

    @click.option(
        "--json", "as_json", is_flag=True, help="Print JSON: one document, or one per line."
    )
    @click.option("--yaml", "as_yaml", is_flag=True, help="Print YAML instead.")
    @wraps(command)
    def run(*args: Any, as_json: bool, as_yaml: bool, **options: Any) -> Any:  # noqa: ANN401 - click's
        if as_json and as_yaml:
            raise click.UsageError("--json and --yaml: give one of them")
        meta = click.get_current_context().meta
        if as_json or as_yaml:  # an option after the command overrides one before it
            meta[YAML] = as_yaml
        return command(*args, as_json=as_json or as_yaml, **options)

    return run


def echo_script(text: str) -> None:
    """Print a shell script unchanged; it contains no text from others."""
    click.echo(text)  # noqa: TID251 - the one place


def document_of(message: Message) -> dict[str, Any]:
    """Return a message as JSON, with all its fields: a number is there also if it is 0.

    Left out are only messages and optional fields that are not set.
    """
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415 - as in echo_json

    told: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return told


def _plain(value: object) -> object:
    if isinstance(value, Message):
        return document_of(value)
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(inner) for inner in value]
    return value


def _on_terminal() -> bool:
    """Return whether standard output is a terminal; it is None if the caller has closed it."""
    return sys.stdout is not None and sys.stdout.isatty()


def echo_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table on a terminal, and aligned lines with a header elsewhere.

    A terminal that is too narrow for the words of a table gets the lines, too, and wraps them: a
    name that is torn apart in a column cannot be read or copied.
    """
    texts = [[clean(str(cell)) for cell in row] for row in rows]
    if _on_terminal() and _rich_table(columns, texts):
        return
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    for row in [[name.upper() for name in columns], *texts]:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        echo(line.rstrip())


_GAP = 2
"""Spaces between two columns."""


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Print a table whose cells wrap between words; return False if the words have no room."""
    from rich.cells import cell_len  # noqa: PLC0415 - so that no pipe waits for it
    from rich.console import Console  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    console, table = Console(), Table(box=None, pad_edge=False, header_style="bold")
    cells = list(zip(columns, *rows, strict=True))
    least = [
        max(cell_len(word) for cell in column for word in [*cell.split(), ""]) for column in cells
    ]
    widths = [min(max(map(cell_len, column)), console.width) for column in cells]
    excess = sum(widths) + _GAP * (len(widths) - 1) - console.width
    if sum(widths) - sum(least) < excess:
        return False
    for _ in range(excess):
        _, widest = max((width, at) for at, width in enumerate(widths) if width > least[at])
        widths[widest] -= 1
    for name, width in zip(columns, widths, strict=True):
        table.add_column(name.upper(), overflow="fold", width=width)
    for row in rows:
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    console.print(table)
    return True


STYLES = {
    "PROGRAMMED": "green",
    "PLANNED": "cyan",
    "ACCEPTED": "yellow",
    "DEGRADED": "red",
    "SUSPENDED": "blue",
    "up": "green",
    "down": "red",
    "drained": "yellow",
}
"""Colours of words that name a state."""


_DUMB = ("dumb", "unknown")
"""Terminals that would show the codes of styles; tables have no styles on them either."""


def echo_pairs(pairs: Mapping[str, object]) -> None:
    """Print names and values, one pair per line; empty values are left out."""
    shown = {name: clean(str(value)) for name, value in pairs.items() if value not in ("", None)}
    width = max(map(len, shown), default=0)
    bold = _on_terminal() and os.environ.get("TERM") not in _DUMB
    for name, value in shown.items():
        label = click.style(name.ljust(width), bold=True) if bold else name.ljust(width)
        click.echo(f"{label}  {value}")  # noqa: TID251 - clean already; the label has a style


def printed_by(view: Callable[[], object]) -> str:
    """Return what a view prints, with colours if standard output is a terminal."""
    kept = _Kept(terminal=_on_terminal())
    with redirect_stdout(kept):
        view()
    return kept.getvalue()


class _Kept(io.StringIO):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        """Whether the stream that it replaces is a terminal."""
        return self._terminal


@contextmanager
def progress(step: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal what a command is doing, once it takes long, and nothing elsewhere.

    ``step`` says it in words, such as "planning". Yields a function to call with each further step.
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    line = _StatusLine(step)
    timer = Timer(_SOON, line.show)
    timer.daemon = True
    timer.start()
    try:
        yield line.tell
    finally:
        timer.cancel()
        timer.join()
        line.close()


class _StatusLine:
    def __init__(self, step: str) -> None:
        self._step = step
        self._live: Live | None = None

    def tell(self, step: str) -> None:
        self._step = step

    def show(self) -> None:
        from rich.console import Console  # noqa: PLC0415 - so that quick commands do not wait
        from rich.live import Live  # noqa: PLC0415 - as above
        from rich.spinner import Spinner  # noqa: PLC0415 - as above
        from rich.text import Text  # noqa: PLC0415 - as above

        spinner = Spinner("dots")

        def line() -> Spinner:
            spinner.text = Text(clean(f"{self._step} …"))
            return spinner

        console = Console(stderr=True)
        # Standard output may be a file, and must not be led to the terminal.
        self._live = Live(
            console=console, get_renderable=line, transient=True, redirect_stdout=False
        )
        self._live.start()

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()


class Screen:
    """Shows a view repeatedly: in place on a terminal, one below the other elsewhere.

    On a terminal, a longer view is cut to fit, and printed whole at the end. Use it in a ``with``
    statement.
    """

    def __init__(self, *, documents: bool) -> None:
        """Take ``documents``: whether the view prints documents for programs."""
        self._documents = documents
        self._shown: str | None = None
        self._live: Live | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if _on_terminal() and not self._documents:
            from rich.console import Console  # noqa: PLC0415 - so that no pipe waits for it
            from rich.live import Live  # noqa: PLC0415 - as above

            console = Console()
            if not console.is_dumb_terminal:
                live = Live(console=console, auto_refresh=False, redirect_stdout=False)
                self._live = self._stack.enter_context(live)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, text: str) -> None:
        """Show this text in place of the previous one, unless it is the same."""
        if text == self._shown:
            return
        if self._live is not None:
            from rich.text import Text  # noqa: PLC0415 - as above

            self._live.update(Text.from_ansi(text.rstrip("\n")), refresh=True)
        else:
            between = "\n" if self._shown is not None and not self._documents else ""
            click.echo(between + text, nl=False)  # noqa: TID251 - clean: views print by the above
        self._shown = text
