"""Engines without HTTP, each resident in a process of its own, so that they can be measured in turns."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from serving.config.processes import describe_exit, signal_group
from tests.bench.places import Command

STOP_SECONDS = 20.0


class ContenderFailed(Exception):
    """An engine did not start, or ended, or answered with something else than figures; one line says which and why."""


def read_tail(log: Path) -> str:
    """The last line of a log that says something."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][-300:] if lines else "it said nothing"


def stop_child(process: subprocess.Popen[bytes], number: int) -> None:
    """End a child and what it started: first with signal `number`, then by force."""
    signal_group(process, number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    signal_group(process, 9)
    process.wait()


class OfflineEngine:
    """Owns a driver's process; see drivers/protocol.py for what is said."""

    def __init__(self, name: str, command: Command, *, log: Path) -> None:
        """Start it and wait until it is ready. Raises `ContenderFailed`."""
        self._name = name
        self._log = log
        environment = {**os.environ, **command.environment}
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command.arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        try:
            self._receive()
        except BaseException:  # nothing that was started may stay, whatever ends the wait
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def generate(self, prompts: list[list[int]], *, output_tokens: int) -> dict[str, Any]:
        """Let it answer the prompts, all at once; what it measured. Raises `ContenderFailed`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"prompts": prompts, "output_tokens": output_tokens}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure() from None
        return self._receive()

    def stop(self) -> None:
        """Let it end; by force where it does not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        stop_child(self._process, 15)
        self._process.stdout.close()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failure()
        return dict(json.loads(line))

    def _failure(self) -> ContenderFailed:
        status = self._process.wait()
        return ContenderFailed(f"{self._name} ended with {describe_exit(status)}: {read_tail(self._log)}")
