"""What to do about a controller that could not be spoken to.

gRPC says UNAVAILABLE whether nobody listens, the authority is not the one, or the other
end wants a certificate and hangs up; only its text tells them apart, and often not that.
So the cure goes by what the client had to show.
"""

from __future__ import annotations

_START = "start it with 'heddle-controller serve', or name another with --server"
NOT_TRUSTED = (
    "give the authority of its certificate by --tls-ca, and by --server a name that it has"
)
NO_TLS = "it speaks no TLS there: leave --tls-ca and --tls-cert out, or name another port"
HUNG_UP = ("Socket closed", "Connection reset by peer", "Connection reset")


def connection_cure(text: str, *, secure: bool, known: bool) -> str:
    """What to do where no controller was reached.

    Args:
        text: gRPC's.
        secure: Whether TLS was spoken.
        known: Whether a certificate was shown.
    """
    if "WRONG_VERSION_NUMBER" in text:
        return NO_TLS
    if "OPENSSL_internal:" in text or "Peer name" in text or "Hostname" in text:
        return NOT_TRUSTED
    if (text.splitlines() or [""])[0].rpartition(": ")[2] not in HUNG_UP:
        return _START
    if not secure:
        return "if it wants TLS, give --tls-ca, --tls-cert and --tls-key"
    if not known:
        return "it may want a certificate: give --tls-cert and --tls-key, or its port for tokens"
    return "it may not take the certificate: is it still valid, and of an authority it knows?"
