"""The preload library for verbs programs, between a C program and two fake libraries.

tests/support/preload has fakes of libibverbs and libmlx5, so no NIC is needed. One test checks that
the real libraries export the same functions, by name and version.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from heddle.ports import ports_text
from tests.support.needs import missing

ROOT = Path(__file__).parents[2]
PRELOAD = ROOT / "agents" / "preload"
PLAYED = ROOT / "tests" / "support" / "preload"
HEADER = Path("/usr/include/infiniband/mlx5dv.h")
SANITIZERS = {
    "plain": (),
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}
HERE, THERE = "10.0.1.1", "10.0.2.1"  # GID 1 of the fake NIC, and a remote address
HERE_6, THERE_6 = "fd00::64", "fd00::9"  # GID 100


def run(*command: str | Path) -> str:
    """Run a command that must succeed, and return its standard output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@dataclass(frozen=True)
class Built:
    """The library and the test program, built with one set of flags."""

    folder: Path
    preloaded: str
    threads_alone: bool = False
    """Whether to leave out forks beside threads.

    ThreadSanitizer cannot follow the children. AddressSanitizer's allocator may stay locked in them
    for ever, since another thread held its lock when they began.
    """

    def command(self, form: str, *, preload: bool = True) -> tuple[str | Path, ...]:
        """Return the program's command, without ASLR, which may stop ThreadSanitizer."""
        preloaded = (f"LD_PRELOAD={self.preloaded}",) if preload else ()
        return ("setarch", "-R", "env", *preloaded, self.folder / "program", form)

    def play(
        self,
        steps: Sequence[str],
        file: str = "",
        *,
        form: str = "direct",
        preload: bool = True,
        more: Mapping[str, str] | None = None,
    ) -> Sequence[str]:
        """Run the program on these steps and return the words that it prints."""
        done = subprocess.run(
            self.command(form, preload=preload),
            input="".join(f"{step}\n" for step in steps),
            env={**os.environ, "HEDDLE_PRELOAD_PORTS": file, **(more or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        return done.stdout.split()


@pytest.fixture(scope="module", params=SANITIZERS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The library and program as users build them, and with each of gcc's sanitizers."""
    if shutil.which("gcc") is None or shutil.which("make") is None or not HEADER.exists():
        missing("needs gcc, make and libibverbs-dev")
    folder = tmp_path_factory.mktemp(request.param)
    flags = SANITIZERS[request.param]
    given = [f"BUILD={folder}", "CC=gcc", f"CFLAGS={' '.join(('-O2', '-g', *flags))}"]
    for place in (PRELOAD, PLAYED):
        run("make", "--silent", "-C", place, *given)
    library = folder / "libheddle-preload.so"
    if request.param != "address":
        return Built(folder, str(library), threads_alone=request.param == "thread")
    first = run("gcc", "-print-file-name=libasan.so").strip()  # ASan must be loaded first
    return Built(folder, f"{first}:{library}", threads_alone=True)


def flow(source: str, destination: str, ports: Sequence[int]) -> Mapping[str, object]:
    """Return one flow of a port document, with only the fields that matter here."""
    return {"source_address": source, "destination_address": destination, "ports": ports}


def written(folder: Path, *flows: Mapping[str, object], name: str = "job.ports") -> str:
    """Write a file of ports in one atomic step and return its path."""
    fresh = folder / f".{name}.new"
    fresh.write_text(ports_text({"flows": flows}))
    fresh.replace(folder / name)
    return str(folder / name)


def opened(name: int, gid: int = 1, to: str = THERE) -> tuple[str, str, str]:
    """Return the steps that make a QP ready to send and print its port."""
    return f"rtr {name} {gid} {to}", f"rts {name}", f"port {name}"


def ports_in(printed: Sequence[str]) -> list[int]:
    """Return the non-zero numbers among the printed words."""
    return [int(word) for word in printed if word != "0"]


@pytest.mark.parametrize("form", ["direct", "dlvsym"])
def test_each_qp_gets_the_port_of_its_addresses(built: Built, tmp_path: Path, form: str) -> None:
    """The n-th QP between two addresses gets the n-th port of all their flows.

    This holds for IPv4 and IPv6. When there are more QPs than ports, the first port is used again.
    """
    file = written(
        tmp_path,
        flow(HERE, THERE, [50001, 50002]),
        flow(HERE, "10.0.3.1", [50009]),
        flow(HERE_6, THERE_6, [60001]),
        flow("", THERE, [1]),
        flow(HERE, THERE, [50003]),
    )
    steps = [step for name in range(4) for step in opened(name)]
    steps += [*opened(4, to="10.0.3.1"), *opened(5, 100, THERE_6)]
    printed = built.play(steps, file, form=form)
    assert ports_in(printed) == [50001, 50002, 50003, 50001, 50009, 60001]


def test_a_place_is_free_again_after_its_qp(built: Built, tmp_path: Path) -> None:
    """A port is free again once its QP is destroyed or reset, unless the NIC refuses that."""
    file = written(tmp_path, flow(HERE, THERE, [50001, 50002, 50003]))
    steps = [step for name in range(3) for step in opened(name)]
    steps += ["destroy 1", *opened(10), "reset 0", *opened(11)]
    steps += ["busy 2", "destroy 2", *opened(12), "busy 2", "destroy 2", *opened(13)]
    printed = built.play(steps, file)
    assert printed.count("16") == 1  # EBUSY, from the destroy that was refused
    ports = [port for port in ports_in(printed) if port != 16]
    assert ports == [50001, 50002, 50003, 50002, 50001, 50001, 50003]


def test_a_new_file_is_read_by_the_next_qp(built: Built, tmp_path: Path) -> None:
    """Open QPs keep their places when a new file is read; a removed file changes nothing."""
    file = written(tmp_path, flow(HERE, THERE, [50001, 50002]))
    with subprocess.Popen(
        built.command("direct"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "HEDDLE_PRELOAD_PORTS": file},
        text=True,
    ) as program:
        stdin, stdout = program.stdin, program.stdout
        assert stdin
        assert stdout

        def port(name: int) -> int:
            stdin.write("".join(f"{step}\n" for step in opened(name)))
            stdin.flush()
            return int([stdout.readline() for _ in range(3)][-1])

        assert port(0) == 50001
        written(tmp_path, flow(HERE, THERE, [51001, 51002, 51003]))
        assert [port(1), port(2)] == [51002, 51003]
        Path(file).unlink()
        assert port(3) == 51001
        stdin.close()
        assert program.wait() == 0


@pytest.mark.parametrize(
    ("file", "steps", "environment"),
    [
        pytest.param("nowhere", opened(0), {}, id="there is no such file"),
        pytest.param(".", opened(0), {}, id="it is no file"),
        pytest.param(
            "job.ports", opened(0, to="10.9.9.9"), {}, id="nothing is known of these addresses"
        ),
        pytest.param("job.ports", opened(0, 99, "10.0.99.1"), {}, id="the GID is not of RoCEv2"),
        pytest.param("job.ports", opened(0, 201), {}, id="there is no such GID"),
        pytest.param("job.ports", opened(0), {"PLAYED_REFUSES": "1"}, id="the NIC refuses"),
        pytest.param("odd.ports", opened(0), {}, id="its lines are odd"),
        pytest.param("job.ports", ("ud 0", *opened(0)), {}, id="a QP of datagrams"),
        pytest.param(
            "odd.ports", opened(0), {"HEDDLE_PRELOAD_LOG": "/dev/full"}, id="the log is full"
        ),
    ],
)
def test_trouble_leaves_a_qp_as_it_is(
    built: Built, tmp_path: Path, file: str, steps: Sequence[str], environment: dict[str, str]
) -> None:
    """Whatever is missing, the QP becomes ready with the port that the driver chose."""
    written(tmp_path, flow(HERE, THERE, [50001]), flow("10.0.99.1", "10.0.99.1", [50002]))
    odd = "".join(f"{HERE} {THERE}{end}\n" for end in ("", " 0", " 65536 1", " 5x", " 7 -1"))
    (tmp_path / "odd.ports").write_bytes(odd.encode() + b"x 7\n\x00\xff" + b"1 " * 5000)
    assert built.play(steps, str(tmp_path / file), more=environment) == ["0", "0", "0"]


def test_it_says_what_it_did(built: Built, tmp_path: Path) -> None:
    """Only on request, it logs one line for each QP, with the reason if it left the QP alone."""
    file, log = written(tmp_path, flow(HERE, THERE, [50001])), tmp_path / "log"
    steps = [*opened(0), *opened(1, to="10.9.9.9"), *opened(2, 201)]
    told = {"HEDDLE_PRELOAD_LOG": str(log)}
    built.play(steps, file, more=told)
    lines = [re.sub(r"^heddle-preload\[\d+\]: ", "", line) for line in log.read_text().splitlines()]
    assert lines == [
        f"{file} has ports of 1 pairs of addresses",
        f"QP 1, {HERE} to {THERE}: port 50001",
        f"QP 2, {HERE} to 10.9.9.9: no port is known, left alone",
        "QP 3: no address of RoCEv2, left alone",
    ]
    log.unlink()
    built.play(opened(0), file, more={**told, "PLAYED_REFUSES": "1"})
    assert "port 50001 is refused: Operation not permitted" in log.read_text()


def test_threads_and_forks_lose_no_place(built: Built, tmp_path: Path) -> None:
    """QPs of many threads and forks all get ports, and all ports are free again afterwards."""
    file = written(tmp_path, flow(HERE, THERE, [50001, 50002, 50003]))
    steps = [f"threads 4 400 1 {THERE}"]
    if not built.threads_alone:
        steps.append(f"forks 20 400 1 {THERE}")
    steps += [step for name in range(3) for step in opened(name)]
    printed = ports_in(built.play(steps, file))
    assert set(printed[:4]) <= {50001, 50002, 50003}
    assert printed[-3:] == [50001, 50002, 50003]


def test_other_questions_to_the_linker_are_the_programs_own(built: Built) -> None:
    """The program's RTLD_NEXT lookups give the same result with and without the preload library."""
    assert built.play(["next"]) == ["0"]
    assert built.play(["next"], preload=False) == ["0"]


def test_large_files_are_read(built: Built, tmp_path: Path) -> None:
    """A file with a host's ports to a thousand others, 16 ports each, is read correctly."""
    others = [f"10.{i % 7}.{i // 7}.9" for i in range(1000)]
    flows = [flow(HERE, to, [*range(49152 + i, 49152 + i + 16)]) for i, to in enumerate(others)]
    file = written(tmp_path, *flows)
    steps = [step for name in range(0, 1000, 37) for step in opened(name, to=others[name])]
    printed = ports_in(built.play(steps, file))
    assert printed == [49152 + name for name in range(0, 1000, 37)]


def test_gcc_and_cppcheck_find_nothing(tmp_path: Path) -> None:
    """Neither gcc's analyser nor cppcheck reports anything about the library."""
    if shutil.which("cppcheck") is None or not HEADER.exists():
        missing("needs cppcheck and libibverbs-dev")
    source = PRELOAD / "heddle_preload.c"
    run(
        *("gcc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-fanalyzer", "-Wall", "-Wextra", "-Werror"),
        *("-c", source, "-o", tmp_path / "checked.o"),
    )
    run(
        *("cppcheck", "--quiet", "--std=c11", "--error-exitcode=1", "-D_GNU_SOURCE"),
        *("-D__OPTIMIZE__", "--enable=warning,performance,portability", source),
    )


def test_the_real_libraries_have_what_it_asks_for() -> None:
    """The real libraries export what the preload library looks up, by name and version."""
    if not HEADER.exists():
        missing("needs libibverbs-dev")
    source = (PRELOAD / "heddle_preload.c").read_text()
    asked = re.findall(r'function_of\("(\S+)", "(\w+)",\s*(?:VERBS|"([\w.]+)")\)', source)
    assert len(asked) == 4
    libraries = run("ldconfig", "-p")
    for library, name, version in asked:
        path = re.search(rf"{re.escape(library)} .*=> (\S+)", libraries)
        assert path is not None, library
        assert f"{name}@@{version or 'IBVERBS_1.1'}" in run("nm", "-D", path[1])


def test_the_document_as_lines() -> None:
    """A port document becomes one line per flow; flows whose NICs have no address are left out."""
    flows = [flow(HERE, THERE, [1, 2]), flow(HERE, "", [3]), flow(HERE_6, THERE_6, [4])]
    told = ports_text(json.loads(json.dumps({"flows": flows})))
    assert told == f"{HERE} {THERE} 1 2\n{HERE_6} {THERE_6} 4\n"
