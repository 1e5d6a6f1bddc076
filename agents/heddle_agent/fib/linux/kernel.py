"""Sockets to the kernel, and the check that we may use it and that it has nf_tables."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import structlog

from heddle_agent.fib.linux import nft, schema
from heddle_agent.fib.linux.nft import RefusedError, Transaction
from heddle_agent.netlink import ROUTE, KernelError, Netlink, Opener, open_socket

_log = structlog.get_logger()

_RIGHTS = (
    "the linux backend may not change routes and rules:"
    " run the agent as root or with the capability CAP_NET_ADMIN"
)
_NO_NFTABLES = (
    "the kernel has no nf_tables, which the linux backend forwards by:"
    " load the module nf_tables, or use another backend"
)
_FOREIGN = (
    "an nftables table 'inet heddle' is there that this version has not written:"
    " run 'heddle-agent clean' in this network namespace, or remove it with nft"
)


class UnavailableError(ValueError):
    """The Linux backend cannot use this machine; the message says what would help."""


class Kernel:
    """Sockets to the routing and nftables parts of the kernel, two for each.

    Only one thread at a time may use a socket. ``urgent`` removes routes while another thread waits
    for an answer on the others. ``reader`` is for long dumps of entries.
    """

    def __init__(self, opener: Opener = open_socket) -> None:
        with ExitStack() as opened:
            try:
                self.routes = opened.enter_context(closing(Netlink(ROUTE, opener)))
                self.urgent = opened.enter_context(closing(Netlink(ROUTE, opener)))
            except (OSError, AttributeError) as error:
                raise UnavailableError(
                    f"the linux backend needs a Linux kernel: {error}"
                ) from error
            try:
                self.nft = opened.enter_context(closing(nft.open_nft(opener)))
                self.reader = opened.enter_context(closing(nft.open_nft(opener)))
            except OSError as error:
                raise UnavailableError(_NO_NFTABLES) from error
            self._sockets = opened.pop_all()

    def close(self) -> None:
        """Close all sockets."""
        self._sockets.close()

    def has_table(self) -> bool:
        """Whether our table exists. UnavailableError if the kernel has no nf_tables."""
        try:
            return bool(nft.ask_sets(self.nft))
        except KernelError as error:
            if error.errno == errno.ENOENT:
                return False
            raise _unavailable(error) from error

    def install(self) -> None:
        """Create what is missing of our table; UnavailableError says why that is impossible."""
        transaction = Transaction()
        schema.create(transaction)
        try:
            transaction.commit(self.nft)
        except RefusedError as refused:
            raise _unavailable(refused.error) from refused


def _unavailable(error: KernelError) -> UnavailableError:
    if error.errno == errno.EPERM:
        return UnavailableError(_RIGHTS)
    if error.errno in {errno.EEXIST, errno.EBUSY}:
        return UnavailableError(_FOREIGN)
    if error.errno == errno.EINVAL and not error.sequence:
        return UnavailableError(_NO_NFTABLES)
    return UnavailableError(f"{_NO_NFTABLES} ({error.strerror})")


@contextmanager
def logged_failure(what: str) -> Iterator[None]:
    """Log what the kernel refuses and continue, as forwarding does."""
    try:
        yield
    except (RefusedError, OSError, UnavailableError) as error:
        _log.error(what, why=str(error))
