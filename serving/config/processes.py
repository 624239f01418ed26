"""Child processes that cannot outlive their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

_PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when the thread that forked it ends."""

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def start_child(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    output: IO[bytes] | int,
    folder: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own, its output going to `output`, tied to this process's death.

    To be called from the main thread: on Linux the kernel kills the child (SIGKILL) when the thread that forked it
    ends, whatever ended it. Elsewhere the child is only stopped by whoever supervises it. Raises OSError where the
    command cannot be executed.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=dict(environment),
        cwd=folder,
        start_new_session=True,
        preexec_fn=_dying_with(os.getpid()),
    )


def _dying_with(parent: int) -> Callable[[], None]:
    """What a child does between fork and exec: nothing that allocates much or takes a lock."""

    def tie() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if _libc is None:
            return
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the request took effect
            os._exit(1)

    return tie


def stop_with_parent() -> None:
    """Ask the kernel to send this process SIGTERM when its parent ends (on Linux; elsewhere nothing)."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def signal_group(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to every process of the child's session's first group; one that is gone is no error."""
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return


def describe_exit(status: int) -> str:
    """`signal 9`, or `exit status 1`, of a `Popen.returncode`."""
    return f"signal {-status}" if status < 0 else f"exit status {status}"
