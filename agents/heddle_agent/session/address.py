"""Addresses of controllers as people write them."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple, Self

_PORTS = range(1, 65536)


class Address(NamedTuple):
    """A host and a TCP port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse "host:port" or "[2001:db8::1]:port"; ValueError says what is wrong."""
        host, colon, port = text.strip().rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError(f"address {text!r}: write an IPv6 address in brackets, [::1]:7400")
        if not colon or not host or any(c.isspace() or c == "/" for c in host):
            raise ValueError(f"address {text!r} is not host:port, for example 127.0.0.1:7400")
        if not port.isascii() or not port.isdigit() or int(port) not in _PORTS:
            raise ValueError(f"address {text!r}: port {port!r} is not a number from 1 to 65535")
        return cls(host, int(port))

    @property
    def loopback(self) -> bool:
        """Whether connections to this address stay on this machine."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
