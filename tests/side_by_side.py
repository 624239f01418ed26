"""Two commands at once: one as ever, and one that takes what processor time everybody else leaves.

Usage: python tests/side_by_side.py COMMAND BESIDE, both for the shell. What the second says is shown once the first has
ended. When one fails, the other is interrupted, and its status is the status of both.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import BinaryIO

_NICEST = 19
_POLL_SECONDS = 0.2


def run(command: str, beside: str) -> int:
    """Run both to their ends; 0, or the status of the first that failed."""
    with tempfile.NamedTemporaryFile() as said:
        first = subprocess.Popen(command, shell=True, start_new_session=True, preexec_fn=_mind_interrupts)
        second = subprocess.Popen(
            beside, shell=True, start_new_session=True, stdout=said, stderr=subprocess.STDOUT, preexec_fn=_yield_to_all
        )
        try:
            with open(said.name, "rb") as told:
                return _wait(first, second, told)
        finally:
            for each in (first, second):
                _interrupt(each)


def _wait(first: subprocess.Popen[bytes], second: subprocess.Popen[bytes], told: BinaryIO) -> int:
    while True:
        statuses = [first.poll(), second.poll()]
        if statuses[0] is not None or statuses[1]:
            shutil.copyfileobj(told, sys.stdout.buffer)
            sys.stdout.flush()
        if failed := [status for status in statuses if status]:
            return failed[0]
        if statuses == [0, 0]:
            return 0
        time.sleep(_POLL_SECONDS)


def _interrupt(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C would, if it runs; it may take its time to clear away what it has started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        process.wait()


def _mind_interrupts() -> None:
    """A shell has what it runs in the background ignore them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _yield_to_all() -> None:
    """Be nice. Where Linux schedules sessions rather than processes, that counts only within one's own, so that the
    session has to be nice too."""
    _mind_interrupts()
    os.nice(_NICEST)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(_NICEST), encoding="ascii")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(run(*sys.argv[1:]))
    sys.exit(128 + signal.SIGINT)
