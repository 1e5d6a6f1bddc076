"""Starting a probe's two halves, and reading what they noted once they have ended."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

from heddle_emulator.netns import LabError
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.layout import MGMT
from heddle_emulator.netns.probe.notes import Notes, read_notes
from heddle_emulator.netns.probe.spec import SMALL, UDP, ProbeFlow, dump

_END_SECONDS = 30.0


class Probe:
    """Use as ``with``: entered when packets flow; ``stop`` gives what was noted."""

    def __init__(self, lab: Lab, flows: list[ProbeFlow]) -> None:
        self._lab, self.flows = lab, flows
        self._halves: dict[str, subprocess.Popen[str]] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="probe", dir=lab.folder))

    def __enter__(self) -> Self:
        for half in ("receive", "send"):  # in this order: nothing is sent to nobody
            self._start(half)
        return self

    def _start(self, half: str) -> None:
        name = __name__.rpartition(".")[0]
        with (self._lab.folder / "probe.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", name, half, self._lab.spaces[MGMT]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._halves[half] = process
        assert process.stdin is not None
        process.stdin.write(dump(self.flows, str(self._folder)) + "\n")
        process.stdin.flush()
        self._hear(process, "ready")

    def __exit__(self, *_: object) -> None:
        for process in self._halves.values():
            process.kill()
            for end in (process.stdin, process.stdout):
                if end is not None:
                    end.close()
            process.wait()

    def stop(self) -> list[Notes]:
        """End the sender, then the receiver; what both noted, in order of the flows.

        Raises:
            LabError: one of them has failed.
        """
        for half in ("send", "receive"):
            process = self._halves[half]
            assert process.stdin is not None
            process.stdin.close()
            self._hear(process, "written")
            process.wait(_END_SECONDS)
            assert process.stdout is not None
            process.stdout.close()
        return read_notes(self._folder, self.flows)

    def _hear(self, process: subprocess.Popen[str], word: str) -> None:
        assert process.stdout is not None
        if process.stdout.readline().strip() != word:
            process.wait(_END_SECONDS)
            words = (self._lab.folder / "probe.log").read_text().strip().splitlines()
            raise LabError(f"a probe failed: {words[-1] if words else 'it said nothing'}")


def probe_flow(
    lab: Lab,
    nics: tuple[str, str],
    ports: tuple[int, int],
    rate: float,
    *,
    name: str = "",
    size: int = SMALL,
    protocol: str = UDP,
) -> ProbeFlow:
    """A stream from one NIC to another, by id, with UDP or TCP ports in the same order.

    Raises:
        LabError: one of them is no NIC of the lab.
    """
    known = lab.layout.nic_port
    for nic in nics:
        if nic not in known:
            raise LabError(f"{nic} is not a NIC of the fabric")
    sender, receiver = known[nics[0]], known[nics[1]]
    return ProbeFlow(
        name or f"{nics[0]}>{nics[1]}:{ports[0]}",
        lab.spaces[sender.namespace],
        lab.spaces[receiver.namespace],
        sender.address,
        receiver.address,
        *ports,
        rate,
        size,
        protocol,
    )
