"""What is about to end: certificates of the controller, of agents and of the command line; tokens.

A certificate counts as about to end if little of its time is left. Most programs that renew
certificates do so when a third of the time is left, so then something is wrong. Of a token only its
end is known, and people renew it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from heddle.text import counted, some_of
from heddle.v1 import doctor_pb2 as pb
from heddle_controller.serve.codec import times
from heddle_controller.serve.doctor import found
from heddle_controller.serve.security.validity import Validity, validity_of

if TYPE_CHECKING:
    from heddle_controller.serve.security.files import Grant  # the command needs no token files

_LEFT = 0.2
"""Part of its whole time from which on a certificate counts as about to end."""
_LEFT_SECONDS = 30 * 86400.0
"""The same, in seconds, for certificates that are valid for long."""
_TOKEN_SECONDS = 7 * 86400.0
"""Remaining time, in seconds, from which on a token counts as about to end."""
ABOUT = "certificates"


def ends_soon(valid: Validity, now: float) -> bool:
    """Return whether a certificate has ended or is about to end."""
    return valid.ends - now < min(_LEFT_SECONDS, _LEFT * (valid.ends - valid.begins))


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
        if valid is not None and ends_soon(valid, now):
            text = f"{whose} certificate {file} {_ends(valid.ends, now)}."
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
        if valid is not None and ends_soon(valid, now):
            soon.append((valid, switch))
    if not soon:
        return
    soon.sort(key=lambda pair: (pair[0].ends, pair[1]))
    first = soon[0][0]
    whose = counted(len(soon), "agent needs a new certificate", "agents need new certificates")
    switches = some_of([switch for _, switch in soon])
    text = f"{whose}: {switches}; the first {_ends(first.ends, now)}."
    cure = "Renew it and replace the file on the switch: it is read again without a restart"
    yield found(_severity(first, now), ABOUT, text, cure)


def of_tokens(grants: Iterable[Grant], now: float) -> Iterator[pb.Finding]:
    """Yield a finding about tokens that have ended or are about to end.

    Args:
        grants: All tokens that the controller knows.
        now: Unix time.
    """
    soon = sorted((one.expires, one.name) for one in grants if one.expires - now < _TOKEN_SECONDS)
    if not soon:
        return
    named = some_of([name for _, name in soon])
    tokens = counted(len(soon), "token must be replaced", "tokens must be replaced")
    text = f"{tokens}: {named}; the first {_ends(soon[0][0], now)}."
    cure = "Make a new one for its holder (heddle token new), and remove its line from the file"
    yield found(pb.SEVERITY_WARNING, "tokens", text, cure)


def _ends(moment: float, now: float) -> str:
    when = times.time_text(times.time_to_pb(moment))
    return f"{'has ended' if moment <= now else 'ends'} at {when}"


def _severity(valid: Validity, now: float) -> pb.Severity.ValueType:
    return pb.SEVERITY_ERROR if valid.ends <= now else pb.SEVERITY_WARNING
