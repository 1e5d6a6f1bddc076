"""Viewers of the page: ``python -m tests.bench.viewers_page URL COUNT``, until input ends.

It prints ``ready`` once every stream has sent its first overview. It reads all that comes, and
discards it.
"""

from __future__ import annotations

import selectors
import socket
import sys
from urllib.parse import urlsplit

FIRST = b"event: overview"


def main(url: str, count: int) -> None:
    """Open the streams and read them until standard input ends."""
    parts = urlsplit(url)
    line = f"GET {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\n\r\n".encode()
    waiting = selectors.DefaultSelector()
    waiting.register(sys.stdin, selectors.EVENT_READ)
    begun: dict[socket.socket, bytes] = {}
    for _ in range(count):
        stream = socket.create_connection((parts.hostname, parts.port))
        stream.sendall(line)
        waiting.register(stream, selectors.EVENT_READ)
        begun[stream] = b""
    while True:
        for key, _ in waiting.select():
            if not isinstance(key.fileobj, socket.socket):
                return
            told = key.fileobj.recv(1 << 16)
            if not told:
                sys.exit(f"the page ended a stream: {begun.get(key.fileobj)!r}")
            if key.fileobj in begun:
                begun[key.fileobj] += told
                if FIRST in begun[key.fileobj]:
                    del begun[key.fileobj]
                    if not begun:
                        sys.stdout.write("ready\n")
                        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
