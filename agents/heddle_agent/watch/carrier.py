"""Carriers and speeds asked for directly.

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

_ETHTOOL, _GET_LINK, _GET_SETTINGS = 0x8946, 0xA, 0x1
_REQUEST = struct.Struct("16sP8x")
_SETTINGS = struct.Struct("=I8xH14xH14x")  # command, then the lower and upper half of the speed
_UNKNOWN = (0, 0xFFFF, 0xFFFFFFFF)


class Carriers:
    """Asks interfaces by name; a microsecond each."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._value = array.array("I", [_GET_LINK, 0])

    def carries(self, name: str) -> bool | None:
        """Whether an interface has carrier; None if the kernel cannot say."""
        self._value[0], self._value[1] = _GET_LINK, 0
        try:
            self._ask(name, self._value)
        except OSError as error:
            return False if error.errno == errno.ENODEV else None
        return bool(self._value[1])

    def gbps(self, name: str) -> float:
        """The speed that an interface has agreed on with its other end; 0 if nobody knows."""
        settings = array.array("B", _SETTINGS.pack(_GET_SETTINGS, 0, 0))
        try:
            self._ask(name, settings)
        except OSError:
            return 0.0
        _, low, high = _SETTINGS.unpack(settings)
        megabits = high << 16 | low
        return 0.0 if megabits in _UNKNOWN else megabits / 1e3

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _ask(self, name: str, value: array.array[int]) -> None:
        address = value.buffer_info()[0]
        fcntl.ioctl(self._socket, _ETHTOOL, _REQUEST.pack(name.encode(), address))
