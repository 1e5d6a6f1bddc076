"""Whether the far end of a link still answers, judged from probes sent and answered.

A link is dead after ``misses`` probes in a row without an answer, and alive again after as many
answers in a row. A neighbour that has never answered proves nothing, because something may filter
the probes. So its silence counts only after its first answer. A link that loses some probes but is
not dead is grey.
"""

from __future__ import annotations

from dataclasses import dataclass

_GREY_WINDOW = 256  # probes
_GREY_LEAST = 4  # lost probes in a window that make a link grey; one alone proves nothing
_GREY_BACK = 1


@dataclass(slots=True)
class Liveness:
    """The probes of one link; sequence numbers count from 1."""

    misses: int = 3
    alive: bool = True
    answered: int = 0
    """Highest sequence number answered; 0 for none."""
    grey: bool = False
    _sent: int = 0
    _judged: int = 0
    _open: int = 0  # bit n: probe number _sent - n has no answer yet
    _run: int = 0  # probes in a row with the same outcome: > 0 answered, < 0 lost
    _history: int = 0  # judged probes, bit 0 is the newest: 1 for lost
    _length: int = 0

    def send(self) -> int:
        """Count a new probe and return its sequence number."""
        self._sent += 1
        self._open = (self._open << 1 | 1) & (1 << 64) - 1
        return self._sent

    def answer(self, sequence: int) -> None:
        """Take in the answer to a probe; late answers to judged probes change nothing."""
        age = self._sent - sequence
        if 0 <= age < 64:  # noqa: PLR2004 - bits of _open
            self._open &= ~(1 << age)
            self.answered = max(self.answered, sequence)

    def answer_to(self, number: int) -> None:
        """Take in an answer that has only the low 16 bits of the sequence number."""
        self.answer(self._sent - (self._sent - number & 0xFFFF))

    def judge(self, *, known: bool = False) -> None:
        """Judge every probe sent so far: those without an answer are lost.

        ``known`` says that the neighbour answers probes, even if it has answered none of these.
        """
        while self._judged < self._sent:
            self._judged += 1
            lost = self._open >> (self._sent - self._judged) & 1 if self._recent else 1
            if known or self.answered:
                self._count(lost=bool(lost))

    def cut(self) -> None:
        """Treat the link as dead because it lost its carrier; it must earn new answers to be alive.

        Probes under way are not judged. A neighbour that never answered stays believed alive.
        """
        self._judged, self._run = self._sent, 0
        if self.answered:
            self._die()

    @property
    def suspect(self) -> bool:
        """Whether the link is believed alive although its last probe was lost."""
        return self.alive and self._run < 0

    @property
    def loss(self) -> float:
        """Share of recent probes lost while the link was believed alive, 0 to 1."""
        return self._history.bit_count() / self._length if self._length else 0.0

    @property
    def _recent(self) -> bool:
        return self._sent - self._judged < 64  # noqa: PLR2004 - bits of _open

    def _die(self) -> None:
        self.alive = self.grey = False
        self._history = self._length = 0  # losses before death do not make the link grey later

    def _count(self, *, lost: bool) -> None:
        if lost:
            self._run = min(self._run, 0) - 1
        else:
            self._run = max(self._run, 0) + 1
        if self.alive and self._run <= -self.misses:
            self._die()
        elif not self.alive and self._run >= self.misses:
            self.alive = True
        if not self.alive:
            return
        self._history = (self._history << 1 | lost) & (1 << _GREY_WINDOW) - 1
        self._length = min(self._length + 1, _GREY_WINDOW)
        lately = self._history.bit_count()
        self.grey = lately >= (_GREY_BACK + 1 if self.grey else _GREY_LEAST)
