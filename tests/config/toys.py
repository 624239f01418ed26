"""Running the toy web process of `toy_web.py`."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class ToyWeb:
    """A running toy web process and what it noted."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self.process = process
        self.folder = folder
        self.port = int((folder / "port").read_text())

    def events(self) -> list[str]:
        path = self.folder / "events"
        return [line.split(" ", 1)[1] for line in path.read_text().splitlines()] if path.exists() else []

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def exchange(self, *pieces: bytes) -> tuple[int, dict[str, str], bytes]:
        """Send raw bytes, as far as the server takes them, and read one answer and the end of the connection."""
        with self.connect() as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for piece in pieces:
                    connection.sendall(piece)
            return read_answer(connection)

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def rss_bytes(self) -> int:
        return int(json.loads(self.get("/rss")[1])["VmRSS"]) * 1024

    def peak_bytes(self) -> int:
        """The most memory that the process ever had: what was taken and given back shows here alone."""
        return int(json.loads(self.get("/rss")[1])["VmHWM"]) * 1024


def read_answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    response = http.client.HTTPResponse(connection)
    response.begin()
    body = response.read()
    return response.status, {name.lower(): value for name, value in response.getheaders()}, body


def wait_for(condition: Callable[[], bool], *, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@contextlib.contextmanager
def toy_web(folder: Path, *, drain_seconds: float = 10.0) -> Iterator[ToyWeb]:
    command = [sys.executable, str(ROOT / "tests" / "config" / "toy_web.py"), str(folder), str(drain_seconds)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=log)
    try:
        wait_for((folder / "port").exists)
        yield ToyWeb(process, folder)
    finally:
        process.kill()
        process.wait()
