"""Generate the Python code of proto/heddle/v1; --check compares it with the committed code.

The generated files are committed, so that nobody needs protoc to install Heddle. The check keeps
them up to date. Everything comes from the lock (protoc through grpcio-tools, types through
mypy-protobuf), so the output is the same on every machine.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "proto"
PACKAGE = Path("heddle/v1")
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


def generate(out: Path) -> None:
    """Write the generated modules of every .proto file below `out`; exit 1 if protoc refuses."""
    protos = sorted(
        path.relative_to(SOURCE).as_posix() for path in SOURCE.glob("heddle/**/*.proto")
    )
    if not protos:
        sys.exit(f"no .proto file below {SOURCE / PACKAGE}: nothing to generate")
    spec = find_spec("google.rpc.status_pb2")
    if spec is None or spec.origin is None:
        sys.exit("googleapis-common-protos is not installed: run make setup")
    programs = Path(sys.executable).parent
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",  # finds google/protobuf by itself
        f"-I{SOURCE}",
        f"-I{Path(spec.origin).parents[2]}",  # google/rpc, google/type
        f"--plugin=protoc-gen-mypy={programs / 'protoc-gen-mypy'}",
        f"--plugin=protoc-gen-mypy_grpc={programs / 'protoc-gen-mypy_grpc'}",
        f"--python_out={out}",
        f"--grpc_python_out={out}",
        f"--mypy_out=quiet:{out}",
        f"--mypy_grpc_out=quiet:{out}",
        *protos,
    ]
    if subprocess.run(command, check=False).returncode != 0:
        sys.exit("protoc refused the files named above: mend them and run make proto again")


def produced(root: Path) -> dict[str, bytes]:
    """Return the content of every generated file below `root`, by relative path."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for pattern in GENERATED
        for path in (root / "heddle").rglob(pattern)
    }


def check() -> int:
    """Compare the committed code with newly generated code, and name each file that differs."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh, committed = produced(Path(folder)), produced(SOURCE)
    stale = sorted(
        name for name in fresh.keys() | committed.keys() if fresh.get(name) != committed.get(name)
    )
    for name in stale:
        print(
            f"proto/{name} is not what its .proto file gives: run make proto and commit the result"
        )
    return 1 if stale else 0


def regenerate() -> int:
    """Generate in place, and remove files that no .proto file produces any more."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = produced(Path(folder))
    for name in produced(SOURCE).keys() - fresh.keys():
        (SOURCE / name).unlink()
    for name, content in fresh.items():
        (SOURCE / name).write_bytes(content)
    print(f"proto: {len(fresh)} files generated")
    return 0


if __name__ == "__main__":
    sys.exit(check() if sys.argv[1:] == ["--check"] else regenerate())
