"""Two commands at once: one as ever, and one that takes what processor time everybody else leaves.

Usage: python tests/side_by_side.py COMMAND BESIDE, both for the shell. What the second says is shown once the first has
ended. When one fails, the other is interrupted, and its status is the status of both. Told to stop, it interrupts both:
they are sessions of their own, whom nobody else would tell.
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
from types import FrameType
from typing import BinaryIO

_NICEST = 19
_POLL_SECONDS = 0.2
_TRIES = 100
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
            _interrupt(first, second)


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


def _interrupt(*processes: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C would, those that run; they may take their time to clear away what they have started."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
    for process in running:
        process.wait()


def _stop(number: int, _frame: FrameType | None) -> None:
    """Once: what is interrupted may take its time."""
    for each in _STOP_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def _mind_interrupts() -> None:
    """A shell has what it runs in the background ignore them."""
    for each in _STOP_SIGNALS:
        signal.signal(each, signal.SIG_DFL)


def _yield_to_all() -> None:
    """Be nice. Where Linux schedules sessions rather than processes, that counts only within one's own, so that the
    session has to be nice too."""
    _mind_interrupts()
    os.nice(_NICEST)
    with contextlib.suppress(OSError):
        group = os.open("/proc/self/autogroup", os.O_WRONLY)
        for _ in range(_TRIES):  # of all that are not privileged, one in a tenth of a second is obeyed
            with contextlib.suppress(BlockingIOError):
                os.write(group, str(_NICEST).encode())
                break
            time.sleep(0.05)
        os.close(group)


if __name__ == "__main__":
    for each in _STOP_SIGNALS:
        signal.signal(each, _stop)
    sys.exit(run(*sys.argv[1:]))
