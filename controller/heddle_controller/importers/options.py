"""What an importer must be told because the file does not say it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from heddle_controller.importers.cabling import UNITS
from heddle_controller.model.errors import InputError, Problem, refuse


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Choices; None is the default that the comment names. Speeds are in Gbit/s."""

    nics_per_host: int = 8
    nic_gbps: float = 400.0
    uplink_gbps: float | None = None
    """Of one cable from leaf to spine, each a link; None is the speed of a NIC."""
    spines_per_group: int | None = None
    """Spines a named spine stands for; as many as a host has NICs."""
    cores_per_plane: int = 8
    """Cores that join the spines of one place in their groups."""
    core_taper: float = 1.0
    """A spine's speed down to the leaves over its speed up to the cores."""
    link_gbps: float | None = None
    """Of a node-link edge that tells no speed; None refuses it."""
    speed_unit: str = "G"
    """Of bare numbers in node-link data: one of "bps", "K", "M", "G", "T"."""

    def check(self, origin: str) -> None:
        """Refuse what cannot be built.

        Raises:
            InputError: with ``origin`` as its source, naming the options.
        """
        problems = [*self._counts(), *self._rates()]
        if self.speed_unit not in UNITS:
            reason = f"is {self.speed_unit!r}; give one of {', '.join(UNITS)}"
            problems.append(Problem("option speed_unit", reason))
        if problems:
            raise InputError(origin, *problems)

    def _counts(self) -> Iterable[Problem]:
        for name in ("nics_per_host", "spines_per_group", "cores_per_plane"):
            value = getattr(self, name)
            if value is not None and value < 1:
                yield Problem(f"option {name}", f"is {value}; give 1 or more")

    def _rates(self) -> Iterable[Problem]:
        for name in ("nic_gbps", "uplink_gbps", "core_taper", "link_gbps"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                yield Problem(f"option {name}", f"is {value}; give a finite number above 0")


def parse_mapping(text: str, origin: str = "--map") -> dict[str, str]:
    """``"host=ip,leaf=ASW"`` as a mapping of our word to theirs; empty text is none.

    Raises:
        InputError: a part without '=' or with one side empty, a word told twice.
    """
    mapping: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        ours, equals, theirs = (side.strip() for side in part.partition("="))
        if not (ours and equals and theirs):
            raise refuse(origin, repr(part), "give OURS=THEIRS, such as leaf=ASW")
        if ours in mapping:
            raise refuse(origin, repr(part), f"{ours} is given twice; keep one")
        mapping[ours] = theirs
    return mapping


def check_words(mapping: Mapping[str, str], known: Iterable[str], origin: str) -> None:
    """Refuse a mapping of words that the importer does not know.

    Raises:
        InputError: naming the word and the nearest known one.
    """
    words = list(known)
    for word in mapping:
        if word not in words:
            close = get_close_matches(word, words, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(words)}"
            raise refuse(origin, f"mapping {word}={mapping[word]}", f"unknown {word!r}; {hint}")
