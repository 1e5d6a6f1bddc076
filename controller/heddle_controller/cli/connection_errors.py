"""Why a controller could not be spoken to, and what to do about it.

gRPC says UNAVAILABLE whether nobody listens, the authority is not the one, or the other
end wants a certificate and hangs up; only its text tells them apart, and often not that.
What can be known of the files is therefore looked at before anything is dialled, and the
cure goes by what the client had to show.
"""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path

from heddle.text import split_address
from heddle_controller.model.errors import refuse

START = "start it with 'heddle-controller serve', or name another with --server"
NOT_TRUSTED = (
    "give the authority of its certificate by --tls-ca, and by --server a name that it has"
)
NO_TLS = "it speaks no TLS there: leave --tls-ca and --tls-cert out, or name another port"
_INTERNAL = "OPENSSL_internal:"


def check_files(ca: Path | None, cert: Path | None, key: Path | None) -> None:
    """Nothing, where TLS can be spoken with these files.

    Raises:
        InputError: names those that cannot be used, with what is wrong.
    """
    if (cert is None) != (key is None):
        raise refuse("--tls-cert", "", "and --tls-key belong together: give both or neither")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if ca is not None:
            context.load_verify_locations(ca)
    except OSError as error:  # and with it ssl.SSLError
        raise refuse(f"--tls-ca {ca}", "", f"{_why(error)}: give a PEM file") from None
    try:
        if cert is not None:
            context.load_cert_chain(cert, key, password="")  # nobody is asked for one
    except OSError as error:
        cure = "give PEM files that belong together, the key without a password"
        raise refuse(f"--tls-cert {cert}, --tls-key {key}", "", f"{_why(error)}: {cure}") from None


def _why(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or str(error)


def check_token(server: str, *, secure: bool) -> None:
    """Nothing, where a token may be sent. Raises ``InputError`` for plain text to other hosts."""
    host, _ = split_address(server)
    if not secure and not _is_local(host):
        cure = "give --tls-ca"
        raise refuse("--token-file", "", f"is not sent to {host} in plain text: {cure}")


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def unreachable(server: str, text: str, *, secure: bool, known: bool) -> str:
    """What to say of a controller that was not reached.

    Args:
        server: Its address.
        text: gRPC's.
        secure: Whether TLS was spoken.
        known: Whether a certificate was shown.
    """
    reason, cure = _reason(text), START
    if "WRONG_VERSION_NUMBER" in text:
        cure = NO_TLS
    elif _INTERNAL in text or "Peer name" in text or "Hostname" in text:
        cure = NOT_TRUSTED
    elif reason in ("Socket closed", "Connection reset by peer", "Connection reset"):
        cure = _hung_up(secure=secure, known=known)
    return f"cannot reach the controller at {server} ({reason}): {cure}"


def _hung_up(*, secure: bool, known: bool) -> str:
    if not secure:
        return "if it wants TLS, give --tls-ca, --tls-cert and --tls-key"
    if not known:
        return "it may want a certificate: give --tls-cert and --tls-key, or its port for tokens"
    return "it may not take the certificate: is it still valid, and of an authority it knows?"


def _reason(text: str) -> str:
    """What gRPC says, without what that is wrapped in: its texts nest, the cause comes last."""
    first = text.splitlines()[0] if text else "no reason told"
    if _INTERNAL in first:
        return first.rpartition(_INTERNAL)[2].removesuffix(": OK")[:200]
    return first.rpartition(": ")[2][:200]
