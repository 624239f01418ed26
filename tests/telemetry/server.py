"""A Valkey that tests may kill."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from serving.config.processes import start_child
from serving.config.valkey import server_command, wait_for_redis


class Server:
    """Owns a Valkey that may be killed and started again on the same socket, with its data or without."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._num_data = 1
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{folder / 'valkey.sock'}"

    def start(self) -> None:
        """Start it, or start it again with what it held."""
        command = server_command(socket=self._folder / "valkey.sock", folder=self._folder / f"data-{self._num_data}")
        with (self._folder / "log").open("ab") as log:
            process = start_child(command, environment=os.environ, output=log)
        self._process = process
        wait_for_redis(self.url, seconds=20, is_alive=lambda: process.poll() is None)

    def start_empty(self) -> None:
        """Start it again without what it held."""
        self._num_data += 1
        self.start()

    def kill(self) -> None:
        """End it at once, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
