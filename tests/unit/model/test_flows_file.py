"""Reading flows.csv, and refusing it by line."""

from __future__ import annotations

import gzip
import math
import os
import threading
from pathlib import Path

import pytest

from heddle_controller.model.demand import Demands, resolve
from heddle_controller.model.errors import MAX_PROBLEMS, InputError
from heddle_controller.model.files.fabric_file import load_fabric_file
from heddle_controller.model.files.flows_file import CHUNK, LONGEST_LINE, load_demands
from heddle_controller.model.flows import TrafficClass

GOLDEN = Path(__file__).parents[2] / "golden"
HEADER = "flow,src,dst,gbps,job,phase\n"


def written(tmp_path: Path, content: str | bytes, name: str = "flows.csv") -> Path:
    """Write a file of the given content and return its path."""
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def rows(demands: Demands) -> list[tuple[object, ...]]:
    """Demands as rows, for comparison."""
    columns = (
        demands.ids,
        demands.source,
        demands.destination,
        demands.gbps.tolist(),
        demands.job,
        demands.phase,
        demands.qps.tolist(),
        demands.traffic_class.tolist(),
    )
    return [*zip(*columns, strict=True)]


def test_golden_flows_are_read_column_by_column() -> None:
    """Every column of the format lands in its place; empty qps and class are the defaults."""
    assert rows(load_demands(GOLDEN / "flows.csv")) == [
        ("f1", "h1n0", "h3n0", 400.0, "train", "forward", 4, TrafficClass.BANDWIDTH),
        ("f2", "h3n0", "h1n0", 400.0, "train", "backward", 1, TrafficClass.BANDWIDTH),
        ("f3", "h2n0", "h4n0", 12.5, "serve, live", "", 2, TrafficClass.LATENCY),
    ]


def test_golden_flows_resolve_on_the_golden_fabric() -> None:
    """The golden flows fit the golden fabric."""
    fabric = load_fabric_file(GOLDEN / "fabric.json")
    flows = resolve(load_demands(GOLDEN / "flows.csv"), fabric, origin="flows.csv")
    assert flows.job_names == ("train", "serve, live")


def test_columns_in_any_order_without_optional_ones(tmp_path: Path) -> None:
    """Columns may come in any order, case and blanks of names do not count, others are ignored."""
    path = written(tmp_path, "phase, GBPS ,note,dst,src,job,flow\nx,1e2,hm,b,a,j,f\n")
    assert rows(load_demands(path)) == [("f", "a", "b", 100.0, "j", "x", 1, 0)]


def test_ignored_columns_are_named(tmp_path: Path) -> None:
    """The reader is told which columns are ignored, and which are known. Unnamed ones are not."""
    notes: list[str] = []
    path = written(tmp_path, "flow,src,dst,gbps,job,phase,size,,colour\nf,a,b,1,j,,64,,red\n")
    load_demands(path, note=notes.append)
    known = "flow, src, dst, gbps, job, phase, qps, class, bytes, start_s"
    told = f"note: {path}: line 1: ignored: 'size', 'colour'; the known columns are {known}"
    assert notes == [told]
    load_demands(GOLDEN / "flows.csv", note=notes.append)
    assert notes == [told]


@pytest.mark.parametrize(
    ("name", "meant"), [("clas", "class"), ("QP", "qps"), ("start", "start_s")]
)
def test_a_misspelt_optional_column_is_refused(name: str, meant: str, tmp_path: Path) -> None:
    """It is not ignored like a note: the error names the column that is meant."""
    path = written(tmp_path, f"flow,src,dst,gbps,job,phase,{name}\nf,a,b,1,j,,1\n")
    with pytest.raises(InputError, match=f"is it '{meant}'"):
        load_demands(path)


def test_qps_of_the_caller_replace_those_of_the_file() -> None:
    """If the caller gives ``qps``, every flow has that many."""
    assert load_demands(GOLDEN / "flows.csv", qps=16).qps.tolist() == [16, 16, 16]


def test_gzip_windows_lines_and_byte_order_mark(tmp_path: Path) -> None:
    """Gzip, Windows line ends, blank lines and a byte order mark do not change the demands."""
    text = (GOLDEN / "flows.csv").read_text(encoding="utf-8").replace("\n", "\r\n\r\n")
    path = written(tmp_path, gzip.compress(b"\xef\xbb\xbf" + text.encode()), "flows.csv")
    assert rows(load_demands(path)) == rows(load_demands(GOLDEN / "flows.csv"))


def test_header_alone_is_no_flows(tmp_path: Path) -> None:
    """A header without rows gives no flows and is no error."""
    demands = load_demands(written(tmp_path, HEADER))
    assert len(demands) == 0
    assert demands.gbps.shape == demands.qps.shape == (0,)


def test_pipe_is_read(tmp_path: Path) -> None:
    """A named pipe serves as well as a file: nothing is read twice."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=(HEADER + "f,a,b,1,j,\n",))
    writer.start()
    demands = load_demands(path)
    writer.join()
    assert demands.ids == ("f",)


def test_more_rows_than_a_chunk_keep_their_order(tmp_path: Path) -> None:
    """Rows of several chunks keep their order, and equal names are one string object."""
    count = 2 * CHUNK + 3
    lines = "".join(f"f{i},a{i % 7},b,{i + 1},j,p\n" for i in range(count))
    demands = load_demands(written(tmp_path, HEADER + lines))
    assert demands.ids == tuple(f"f{i}" for i in range(count))
    assert demands.gbps.tolist() == [*range(1, count + 1)]
    assert demands.source[0] is demands.source[7 * (CHUNK // 7 + 1)]


REFUSED: dict[str, tuple[str | bytes, str]] = {
    "empty": ("", "the file is empty"),
    "no header": ("f1,a,b,100,j,\n", "line 1: no header; it must be flow,src"),
    "blank": ("\n\n", "line 1: no header"),
    "column missing": ("flow,src,dst,job\nf,a,b,j\n", "line 1: the header lacks gbps, phase"),
    "column twice": ("flow,src,dst,gbps,job,phase,src\n", "line 1: the header has 'src' twice"),
    "short row": (HEADER + "f,a,b,1,j,\ng,a,b\n", "line 3: has 3 fields, the header 6"),
    "long row": (HEADER + "f,a,b,1,j,,,\n", "line 2: has 8 fields, the header 6"),
    "gbps a word": (HEADER + "f,a,b,fast,j,\n", "line 2: gbps is 'fast'; give a finite number"),
    "gbps empty": (HEADER + "f,a,b,,j,\n", "line 2: gbps is ''; give a finite number"),
    "gbps NaN": (HEADER + "f,a,b,nan,j,\n", "line 2: gbps is 'nan'; give a finite number"),
    "gbps 1_000": (HEADER + "f,a,b,1_000,j,\n", "line 2: gbps is '1_000'; give a finite number"),
    "gbps 3 in Arabic": (HEADER + "f,a,b,٣,j,\n", "line 2: gbps is '٣'; give a finite number"),
    "gbps infinite": (HEADER + "f,a,b,inf,j,\n", "line 2: gbps is 'inf'"),
    "gbps negative": (HEADER + "f,a,b,-1,j,\n", "line 2: gbps is '-1'"),
    "gbps zero": (HEADER + "f,a,b,0,j,\n", "line 2: gbps is '0'"),
    "self flow": (HEADER + "f,a,a,1,j,\n", "line 2: src and dst are both 'a'; drop the flow"),
    "no id": (HEADER + ",a,b,1,j,\n", "line 2: has no flow id"),
    "id twice": (
        HEADER + "f,a,b,1,j,\n\ng,a,b,1,j,\nf,b,a,1,j,\n",
        "line 5: flow 'f' is already on line 2",
    ),
    "qps zero": (HEADER[:-1] + ",qps\nf,a,b,1,j,,0\n", "line 2: qps is '0'; give an integer"),
    "qps a fraction": (HEADER[:-1] + ",qps\nf,a,b,1,j,,1.5\n", "line 2: qps is '1.5'"),
    "qps endless": (HEADER[:-1] + ",qps\nf,a,b,1,j,," + "9" * 5000 + "\n", "line 2: qps is '999"),
    "class": (HEADER[:-1] + ",class\nf,a,b,1,j,,slow\n", "line 2: class is 'slow'; use bandwidth"),
    "line in quotes": (HEADER + 'f,a,b,1,"j\nj",\ng,a,a,1,j,\n', "line 4: src and dst are both"),
    "not UTF-8": (HEADER.encode() + b"f,\xff,b,1,j,\n", "near line 1: not UTF-8 text"),
    "gzip cut short": (gzip.compress(HEADER.encode() * 99)[:-9], "broken gzip"),
    "gzip of nothing": (gzip.compress(b""), "no header"),
    "endless line": (HEADER + "f" * LONGEST_LINE * 2, "line 2: the line is longer"),
    "quote never closed": (
        HEADER + 'f,a,b,1,"j\n' + "x\n" * (CHUNK * 10),
        "malformed CSV: field larger than field limit",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_faulty_line_is_named(case: str, tmp_path: Path) -> None:
    """A faulty file is refused in one line that names file, line and cure."""
    content, expected = REFUSED[case]
    path = written(tmp_path, content)
    with pytest.raises(InputError) as caught:
        load_demands(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert expected in line
    assert "\n" not in line
    assert len(line) < 400


def test_problems_come_in_order_and_not_endlessly(tmp_path: Path) -> None:
    """Of many faults the first ``MAX_PROBLEMS`` are told, in order of lines."""
    lines = [f"f{i},a,b,{'x' if i % 3 == 0 else 1},j,\n" for i in range(300)]
    lines[1] = "f1,a,a,1,j,\n"
    with pytest.raises(InputError) as caught:
        load_demands(written(tmp_path, HEADER + "".join(lines)))
    told = [problem.record for problem in caught.value.problems]
    assert told[:3] == ["line 2", "line 3", "line 5"]
    assert len(told) == MAX_PROBLEMS
    assert str(caught.value).endswith(" (and more problems)")


def test_large_garbage_is_refused_at_its_start(tmp_path: Path) -> None:
    """100 MB without a line end are refused at the first line."""
    path = tmp_path / "flows.csv"
    with path.open("wb") as file:
        file.truncate(100_000_000)
    with pytest.raises(InputError, match=r"line 1: the line is longer"):
        load_demands(path)


def test_rates_survive_as_given() -> None:
    """All rates of the golden file are finite and above 0."""
    assert all(math.isfinite(rate) and rate > 0 for rate in load_demands(GOLDEN / "flows.csv").gbps)
