"""FOOTPLATE_HOME: made by a start, kept to one start at a time, and left as it was by a start that is refused."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from django.conf import settings

from serving.config.env import stored_secret

_FOLDERS = ("logs", "models")
_LOCK = "serve.lock"


class StartProblem(Exception):
    """The start cannot go on; the message is one line for the operator."""


class Home:
    """Owns what becomes of FOOTPLATE_HOME when the start that holds its lock is refused.

    A home that had nothing in it is emptied again, and goes if it was made, until `keep` was called: a refused start
    leaves nothing half done. One that had anything in it is never touched.
    """

    def __init__(self, path: Path, *, made: Sequence[Path]) -> None:
        self.path = path
        self._made = tuple(made)
        self._is_new = _is_bare(path)

    @property
    def is_kept(self) -> bool:
        """Whether what is in it is complete: it was before this start, or `keep` was called."""
        return not self._is_new

    def keep(self) -> None:
        """What is in it now is complete, and another start goes on from there."""
        self._is_new = False

    def undo(self) -> None:
        """Take away what a refused start has put into a new home."""
        if not self._is_new:
            return
        for entry in self.path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody else has put something there
            for folder in self._made:
                folder.rmdir()


@contextlib.contextmanager
def locked_home() -> Iterator[Home]:
    """Make FOOTPLATE_HOME and keep every other start off it; undo what was made where the start ends in `StartProblem`.

    Raises `StartProblem` where another start is there, or the disk is closed.
    """
    path: Path = settings.FOOTPLATE_HOME
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        for name in _FOLDERS:
            (path / name).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path) as probe:
            probe.write(b"footplate")
        lock = (path / _LOCK).open("a")
    except OSError as error:
        raise StartProblem(f"FOOTPLATE_HOME {path} cannot be written ({error.strerror})") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StartProblem(f"another `serve` runs on {path}; stop it, or set FOOTPLATE_HOME") from None
        home = Home(path, made=made)  # only now: what is there is nobody else's
        try:
            yield home
        except StartProblem:
            home.undo()
            raise


def keep_secret() -> None:
    """Store the secret that signs sessions in FOOTPLATE_HOME, where SECRET_KEY does not say it. Raises OSError."""
    if settings.SECRET_KEY_FILE is not None:
        settings.SECRET_KEY = stored_secret(settings.SECRET_KEY_FILE)


def _is_bare(path: Path) -> bool:
    """Whether there is nothing but what `locked_home` has just made."""
    return {entry.name for entry in path.iterdir()} <= {*_FOLDERS, _LOCK} and not any(
        any((path / name).iterdir()) for name in _FOLDERS
    )
