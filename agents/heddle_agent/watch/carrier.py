"""Carriers asked for directly.

The kernel tells of changed carriers at most once a second, except where it holds a change to be
urgent, which a loss usually is not: the first of several losses comes at once and the others late,
and so does the withdrawal of routes over them. To ask costs a microsecond a link.
"""

from __future__ import annotations

import array
import errno
import fcntl
import socket
import struct

_ETHTOOL, _GET_LINK = 0x8946, 0xA
_REQUEST = struct.Struct("16sP8x")


class Carriers:
    """Asks for the carrier of interfaces by name; a microsecond each."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._value = array.array("I", [_GET_LINK, 0])
        self._address = self._value.buffer_info()[0]

    def carries(self, name: str) -> bool | None:
        """Whether an interface has carrier; None if the kernel cannot say."""
        self._value[0], self._value[1] = _GET_LINK, 0
        try:
            fcntl.ioctl(self._socket, _ETHTOOL, _REQUEST.pack(name.encode(), self._address))
        except OSError as error:
            return False if error.errno == errno.ENODEV else None
        return bool(self._value[1])

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
