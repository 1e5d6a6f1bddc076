"""Linux calls that Python's library lacks: entering a network namespace, and setting links fast.

A thread enters a namespace, not a process. A socket or child process that a thread makes inside
belongs to the namespace for good, whichever thread uses it later. So everything that must be made
inside is made by a short-lived thread, and no other thread of the process changes its namespace.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from heddle_emulator.netns import LabError

NAMESPACES = Path("/run/netns")
CLONE_NEWNET = 0x40000000
CLONE_NEWNS = 0x00020000
MS_REC, MS_SLAVE = 16384, 1 << 19
PR_SET_PDEATHSIG = 1

_LIBC = ctypes.CDLL(None, use_errno=True)

_T = TypeVar("_T")


def inside(namespace: str, make: Callable[[], _T]) -> _T:
    """Call ``make`` in a namespace, in a new thread, and return its result or raise its error.

    Raises:
        LabError: the namespace does not exist, or this process may not enter it.
    """
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            enter(namespace)
            results.append(make())
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name=f"in {namespace}")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def enter(namespace: str) -> None:
    """Move the calling thread into a network namespace, for good.

    Raises:
        LabError: the namespace does not exist, or this process may not enter it.
    """
    try:
        handle = os.open(NAMESPACES / namespace, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise LabError(f"there is no namespace {namespace}; is the lab up?") from None
    try:
        _checked(_LIBC.setns(handle, CLONE_NEWNET), f"enter namespace {namespace}")
    finally:
        os.close(handle)


def see_own_devices() -> None:
    """Mount a /sys of its network namespace for the calling process, as ``ip netns exec`` does."""
    _checked(_LIBC.unshare(CLONE_NEWNS), "leave the mount namespace")
    _checked(_LIBC.mount(b"", b"/", b"none", MS_SLAVE | MS_REC, None), "keep mounts apart")
    _LIBC.umount2(b"/sys", 2)
    _checked(_LIBC.mount(b"lab", b"/sys", b"sysfs", 0, None), "mount /sys")


def _checked(status: int, what: str) -> None:
    if status:
        number = ctypes.get_errno()
        raise LabError(f"cannot {what}: {os.strerror(number)}; the lab needs root")


RTM_SETLINK = 19
NLM_F_REQUEST, NLM_F_ACK = 1, 4
IFF_UP = 1


class LinkSwitch:
    """Takes interfaces of one namespace down and up, with one message to the kernel each.

    Everything that costs time is done in advance, so that a fault strikes when it is due.
    """

    def __init__(self, namespace: str) -> None:
        self._socket = inside(
            namespace, lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        )
        self._socket.bind((0, 0))
        self._indexes = dict(inside(namespace, _indexes))

    def set(self, *interfaces: str, up: bool) -> None:
        """Take interfaces up or down, one right after the other.

        Raises:
            LabError: an interface does not exist, or the kernel refuses.
        """
        for name in interfaces:
            if name not in self._indexes:
                raise LabError(f"there is no interface {name}")
            flags = IFF_UP if up else 0
            body = struct.pack("=BxHiII", socket.AF_UNSPEC, 0, self._indexes[name], flags, IFF_UP)
            head = struct.pack(
                "=IHHII", 16 + len(body), RTM_SETLINK, NLM_F_REQUEST | NLM_F_ACK, 1, 0
            )
            self._socket.send(head + body)
            answer = self._socket.recv(4096)
            error = -struct.unpack_from("=i", answer, 16)[0]
            if error:
                raise LabError(f"cannot set {name}: {os.strerror(error)}")

    def close(self) -> None:
        """Close the socket to the kernel."""
        self._socket.close()


def _indexes() -> list[tuple[str, int]]:
    return [(name, index) for index, name in socket.if_nameindex()]
