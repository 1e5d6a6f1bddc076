"""``heddle audit``: who changed what. Exports can be kept, and verified without a server.

An export has one JSON object per line: the anchor first, then every record. A later export may
begin where an earlier one ended (``--after``). So the parts form one chain of any length, although
the controller keeps only the newest records.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import orjson
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from heddle.v1 import audit_pb2 as pb
from heddle_controller.cli.client import Terms
from heddle_controller.cli.failure import FAULT, CommandGroup, Failure
from heddle_controller.cli.options import INPUT_FILE, OUTPUT_FILE, with_client
from heddle_controller.cli.output import echo, echo_json, echo_raw_json, echo_table
from heddle_controller.model.errors import InputError
from heddle_controller.serve.codec import audit as codec
from heddle_controller.serve.codec import times
from heddle_controller.state.audit import AuditBroken, AuditRecord, Mark, parse_mark, verify

PAGE = 1000
_WIDTH = 60


@click.group(cls=CommandGroup)
def audit() -> None:
    """See who changed what, and check that no record is missing or altered."""


@audit.command("list")
@click.option(
    "--last", default=20, show_default=True, help="How many records to list; 0 lists all."
)
@with_client
def list_records(client: Terms, *, last: int) -> None:
    """List the newest changes and the head of the chain; keep the head elsewhere."""
    if last < 0:
        raise Failure(f"--last {last}: give a number from 0 up")
    head = codec.mark_from_pb(_page(client, 0, 1).head)
    records = list(_records(client, max(head.number - last, 0) if last else 0))
    if client.json:
        for record in records:
            echo_json(record)
        return
    columns = ("number", "time", "who", "request", "action", "name", "before", "after")
    echo_table(columns, [_row(record) for record in records])
    echo(f"head {head}", err=True)


def _row(record: pb.AuditRecord) -> tuple[object, ...]:
    sides = (text[:_WIDTH] + "…" * (len(text) > _WIDTH) for text in (record.before, record.after))
    when = times.time_text(record.time)
    return (record.number, when, record.actor, record.request, record.action, record.name, *sides)


@audit.command("export")
@click.option("--out", type=OUTPUT_FILE, default=Path("-"), help="File to write.")
@click.option("--after", default=0, help="Write only records with a higher number.")
@with_client
def export(client: Terms, *, out: Path, after: int) -> None:
    """Write the records as JSON lines, for 'heddle audit verify --file'."""
    lines = _export(client, after)
    if str(out) == "-":
        for line in lines:
            echo_raw_json(line)
        return
    try:
        with out.open("xb") as file:
            file.writelines(line + b"\n" for line in lines)
    except OSError as error:
        raise Failure(f"{out}: {error.strerror}") from None


def _export(client: Terms, after: int) -> Iterator[bytes]:
    start = _start(client, after)
    yield orjson.dumps({"anchor": str(start)})
    for record in _records(client, start.number):
        yield orjson.dumps(MessageToDict(record, preserving_proto_field_name=True))


def _start(client: Terms, after: int) -> Mark:
    """Return the mark after which an export begins."""
    page = _page(client, max(after - 1, 0), 1)
    anchor = codec.mark_from_pb(page.anchor)
    if after <= anchor.number:
        if 0 < after < anchor.number:
            raise Failure(f"record {after} is not kept any more: the oldest is {anchor.number + 1}")
        return anchor
    if not page.records or page.records[0].number != after:
        raise Failure(f"there is no record {after}")
    return Mark(after, page.records[0].hash)


@audit.command("verify")
@click.option(
    "--file",
    "files",
    multiple=True,
    type=INPUT_FILE,
    help="File that 'heddle audit export' wrote; may be repeated.",
)
@click.option(
    "--head", "noted", help="Head that you wrote down earlier; the chain must contain it."
)
@with_client
def verify_trail(client: Terms, *, files: tuple[Path, ...], noted: str | None) -> None:
    """Check that no record was changed, removed or inserted; exit 1 if one was.

    Without --file, it reads the controller's trail. It prints the head of the chain: keep it in a
    place that nobody who can change the store can write to.
    """
    try:
        known = parse_mark(noted) if noted else None
        start, records = _of_files(files) if files else _of_server(client)
        last = verify(start, records, known)
    except AuditBroken as broken:
        raise Failure(f"the audit trail does not hold: {broken}", FAULT) from None
    except ValueError as error:
        raise Failure(str(error)) from None
    if known is not None and not start.number <= known.number <= last.number:
        reason = f"record {known.number} is not in it: it has {start.number + 1} to {last.number}"
        raise Failure(f"the audit trail does not hold: {reason}", FAULT)
    if client.json:
        echo_json({"head": str(last)})
    else:
        echo(str(last))


def _of_server(client: Terms) -> tuple[Mark, Iterator[AuditRecord]]:
    anchor = codec.mark_from_pb(_page(client, 0, 1).anchor)
    return anchor, map(codec.record_from_pb, _records(client, anchor.number))


def _of_files(files: tuple[Path, ...]) -> tuple[Mark, Iterator[AuditRecord]]:
    """Return the first anchor and all records; each file must begin where the one before ended."""
    parts = [read_export(path) for path in files]
    return parts[0][0], _joined(parts)


def _joined(parts: list[tuple[Mark, list[AuditRecord]]]) -> Iterator[AuditRecord]:
    here = parts[0][0]
    for start, records in parts:
        if start != here:
            raise AuditBroken(here.number + 1, f"is missing: a file begins at {start}, not {here}")
        yield from records
        if records:
            here = Mark(records[-1].number, records[-1].hash)


def read_export(path: Path) -> tuple[Mark, list[AuditRecord]]:
    """Return the anchor and the records of an export.

    Raises:
        Failure: The file cannot be read, is empty, or has a line that is not part of an export; the
            message names the line.
    """
    start, records = None, []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        try:
            fields = orjson.loads(line)
            if start is None:
                start = parse_mark(fields["anchor"])
            else:
                records.append(codec.record_from_pb(ParseDict(fields, pb.AuditRecord())))
        except (ValueError, KeyError, TypeError, AttributeError, ParseError, InputError):
            raise Failure(
                f"{path}: line {number} was not written by 'heddle audit export'"
            ) from None
    if start is None:
        raise Failure(f"{path}: is empty: give a file that 'heddle audit export' wrote")
    return start, records


def _records(client: Terms, after: int) -> Iterator[pb.AuditRecord]:
    """Yield all records above a number, page by page."""
    while True:
        page = _page(client, after, PAGE)
        if not page.records:
            return
        if page.records[0].number != after + 1 and after:
            sys.stderr.write(f"records {after + 1} to {page.records[0].number - 1} are gone\n")
        yield from page.records
        after = page.records[-1].number


def _page(client: Terms, after: int, size: int) -> pb.ListAuditRecordsResponse:
    request = pb.ListAuditRecordsRequest(after=after, page_size=size)
    return client.api.audit.ListAuditRecords(request)
