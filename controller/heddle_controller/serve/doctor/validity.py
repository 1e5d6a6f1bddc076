"""Certificates that are about to end: those of the controller, of agents and of the command line.

A certificate counts as about to end if little of its time is left. Most programs that renew
certificates do so when a third of the time is left, so then something is wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from heddle.text import counted, some_of
from heddle.v1 import doctor_pb2 as pb
from heddle_controller.serve.codec import times
from heddle_controller.serve.doctor import found

_LEFT = 0.2
"""Part of its whole time from which on a certificate counts as about to end."""
_LEFT_SECONDS = 30 * 86400.0
"""The same, in seconds, for certificates that are valid for long."""
ABOUT = "certificates"


class Validity(NamedTuple):
    """When a certificate is valid, in Unix seconds."""

    begins: float
    ends: float

    def ends_soon(self, now: float) -> bool:
        """Whether it has ended or is about to end."""
        return self.ends - now < min(_LEFT_SECONDS, _LEFT * (self.ends - self.begins))


def validity_of(pem: bytes) -> Validity | None:
    """Return when all certificates of a PEM file are valid; None if it has none that is readable.

    Of several certificates, the one that ends first counts.
    """
    from cryptography import x509  # noqa: PLC0415 - takes time, and few commands need it

    try:
        known = x509.load_pem_x509_certificates(pem)
    except ValueError:
        return None
    moments = [(one.not_valid_before_utc, one.not_valid_after_utc) for one in known]
    begins, ends = min(moments, key=lambda moment: moment[1])
    return Validity(begins.timestamp(), ends.timestamp())


def of_files(whose: str, files: Iterable[Path | None], now: float) -> Iterator[pb.Finding]:
    """Yield a finding for each PEM file whose certificates have ended or are about to end.

    Args:
        whose: Names whose files these are, as in "the controller's".
        files: The files. One that cannot be read is skipped: whoever uses it says so.
        now: Unix time.
    """
    for file in files:
        try:
            valid = validity_of(file.read_bytes()) if file is not None else None
        except OSError:
            continue
        if valid is not None and valid.ends_soon(now):
            text = f"{whose} certificate {file} {_ends(valid, now)}."
            cure = "Renew it and replace the file: it is read again without a restart"
            yield found(_severity(valid, now), ABOUT, text, cure)


def of_agents(shown: Iterable[tuple[str, bytes]], now: float) -> Iterator[pb.Finding]:
    """Yield a finding about agents whose certificates have ended or are about to end.

    Args:
        shown: Each switch with the certificate that its agent showed as PEM, empty if it showed
            none.
        now: Unix time.
    """
    soon = []
    for switch, pem in shown:
        valid = validity_of(pem) if pem else None
        if valid is not None and valid.ends_soon(now):
            soon.append((valid, switch))
    if not soon:
        return
    soon.sort(key=lambda pair: (pair[0].ends, pair[1]))
    first = soon[0][0]
    whose = counted(len(soon), "agent needs a new certificate", "agents need new certificates")
    switches = some_of([switch for _, switch in soon])
    text = f"{whose}: {switches}; the first {_ends(first, now)}."
    cure = "Renew it and replace the file on the switch: it is read again without a restart"
    yield found(_severity(first, now), ABOUT, text, cure)


def _ends(valid: Validity, now: float) -> str:
    when = times.time_text(times.time_to_pb(valid.ends))
    return f"{'has ended' if valid.ends <= now else 'ends'} at {when}"


def _severity(valid: Validity, now: float) -> pb.Severity.ValueType:
    return pb.SEVERITY_ERROR if valid.ends <= now else pb.SEVERITY_WARNING
