"""When certificates are valid. The command line asks this too, so little is imported here."""

from __future__ import annotations

from typing import NamedTuple


class Validity(NamedTuple):
    """When a certificate is valid, in Unix seconds."""

    begins: float
    ends: float


def validity_of(pem: bytes) -> Validity | None:
    """Return when all certificates of a PEM file are valid; None if it has none that is readable.

    Of several certificates, the one that ends first counts.
    """
    from cryptography import x509  # noqa: PLC0415 - takes time, and few programs need it

    try:
        known = x509.load_pem_x509_certificates(pem)
    except ValueError:
        return None
    moments = [(one.not_valid_before_utc, one.not_valid_after_utc) for one in known]
    begins, ends = min(moments, key=lambda moment: moment[1])
    return Validity(begins.timestamp(), ends.timestamp())
