"""Websockets by hand, which do what no well-meaning client does."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import struct
from collections.abc import Iterator

from tests.config.toys import ToyWeb

MEGABYTE = 1_000_000
MAX_MESSAGE_BYTES = 65_536
CONTINUATION, TEXT, CLOSE, PING = 0, 1, 8, 9


def upgrade(path: str, *headers: bytes) -> bytes:
    key = base64.b64encode(os.urandom(16))
    lines = [
        f"GET {path} HTTP/1.1".encode(),
        b"Host: x",
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: " + key,
        *headers,
    ]
    return b"\r\n".join([*lines, b"", b""])


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True) -> bytes:
    """A client's frame, masked with zeros: which changes nothing."""
    size = len(payload)
    head = bytes([opcode | (0x80 if fin else 0)])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 65_536:
        head += bytes([0x80 | 126]) + struct.pack("!H", size)
    else:
        head += bytes([0x80 | 127]) + struct.pack("!Q", size)
    return head + bytes(4) + payload


@contextlib.contextmanager
def opened(web: ToyWeb, path: str) -> Iterator[socket.socket]:
    """A websocket by hand, which answers nothing by itself."""
    with web.connect() as connection:
        connection.sendall(upgrade(path))
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += connection.recv(1)
        assert head.startswith(b"HTTP/1.1 101 ")
        yield connection


def read_until_gone(connection: socket.socket) -> bytes:
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65_536):
            received += piece
    return received


def send_until_gone(connection: socket.socket, pieces: Iterator[bytes]) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for piece in pieces:
            connection.sendall(piece)


def assert_closed(connection: socket.socket, code: int) -> None:
    assert struct.pack("!H", code) in read_until_gone(connection)


def one_large_frame() -> Iterator[bytes]:
    yield bytes([0x81, 0xFF]) + struct.pack("!Q", 200 * MEGABYTE) + bytes(4)
    yield from (bytes(MEGABYTE) for _ in range(200))


def num_of(web: ToyWeb, event: str) -> int:
    return web.events().count(event)
