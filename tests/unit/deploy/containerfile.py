"""Read a Containerfile far enough to check it: instructions by stage, COPY sources, RUN."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
IMAGES = ROOT / "deploy" / "images"
NAMES = ("agent", "controller", "emulator", "kubernetes", "sonic")
KNOWN = {
    "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL", "RUN",
    "USER", "VOLUME", "WORKDIR",
}  # fmt: skip
MOUNT = re.compile(r"^--mount=\S+\s+")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, with its lines joined."""

    name: str
    text: str

    def words(self) -> list[str]:
        """Return the arguments as a shell would split them."""
        return shlex.split(self.text)

    def pairs(self) -> dict[str, str]:
        """Return KEY=VALUE arguments, as in LABEL and ENV."""
        return dict(word.split("=", 1) for word in self.words())

    def exec_form(self) -> list[str]:
        """Return the command in JSON form. Raises ValueError if it is in the shell's form."""
        value: list[str] = json.loads(self.text[self.text.index("[") :])
        return value

    def command(self) -> str:
        """Return the command that RUN gives the shell, without its mounts."""
        return MOUNT.sub("", self.text)


@dataclass(frozen=True, slots=True)
class Stage:
    """A FROM and the instructions that follow it."""

    base: str
    name: str
    instructions: tuple[Instruction, ...]

    def all(self, name: str) -> list[Instruction]:
        """Return every instruction with this name, in order."""
        return [each for each in self.instructions if each.name == name]

    def one(self, name: str) -> Instruction:
        """Return the only instruction with this name."""
        (found,) = self.all(name)
        return found


def instructions(text: str) -> list[Instruction]:
    """Return all instructions. Raises AssertionError for a line that is not one."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    found = []
    for line in filter(str.strip, joined.splitlines()):
        name, _, rest = line.partition(" ")
        assert name in KNOWN, f"{line!r} begins with no instruction that is used here"
        found.append(Instruction(name, rest.strip()))
    return found


def read(name: str) -> tuple[list[Instruction], list[Stage]]:
    """Return the instructions before the first FROM, and the stages."""
    before: list[Instruction] = []
    stages: list[Stage] = []
    for each in instructions((IMAGES / f"{name}.Containerfile").read_text(encoding="utf-8")):
        if each.name == "FROM":
            base, *alias = each.words()
            stages.append(Stage(base, alias[-1] if alias else "", ()))
        elif stages:
            last = stages[-1]
            stages[-1] = Stage(last.base, last.name, (*last.instructions, each))
        else:
            before.append(each)
    return before, stages
