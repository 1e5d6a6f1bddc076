"""Carriers and speeds of interfaces, read directly from the kernel.

The kernel announces carrier changes at most once a second, except those that it considers urgent,
and a loss usually is not. So the first of several losses is announced at once and the others late,
as is the withdrawal of routes over them. Reading a carrier costs a microsecond per link.
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
    """Reads the state of interfaces by name, at a microsecond each."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._value = array.array("I", [_GET_LINK, 0])

    def carries(self, name: str) -> bool | None:
        """Whether an interface exists and has carrier; None if the kernel cannot tell."""
        self._value[0], self._value[1] = _GET_LINK, 0
        try:
            self._ask(name, self._value)
        except OSError as error:
            return False if error.errno == errno.ENODEV else None
        return bool(self._value[1])

    def gbps(self, name: str) -> float:
        """Return the speed that both ends of the link agreed on, in Gbit/s; 0 if unknown."""
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
