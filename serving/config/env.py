"""The environment, read once and loudly: a value that makes no sense stops the process with one line."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

from serving.contracts.ids import POOL_NAME, POOL_NAME_IN_WORDS

_LONGEST_SOCKET_PATH = 100
"""A Unix socket's path may have about 107 bytes."""


class EnvironmentProblem(SystemExit):
    """A variable's value cannot be used. Ends the process with its message and exit status 1."""

    def __init__(self, name: str, value: str, wanted: str) -> None:
        super().__init__(f"footplate: {name} must be {wanted}, not {value!r}")


class Environment:
    """Typed look-ups in a mapping of variables. Owns nothing; raises `EnvironmentProblem` for what cannot be used."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def text(self, name: str, default: str) -> str:
        """The value, or `default` where it is unset or empty."""
        return self._variables.get(name, "").strip() or default

    def flag(self, name: str, *, default: bool) -> bool:
        """`1`, `true`, `yes` and `on` are true; `0`, `false`, `no` and `off` are false."""
        value = self.text(name, "1" if default else "0").lower()
        if value in {"1", "true", "yes", "on"}:
            return True
        if value in {"0", "false", "no", "off"}:
            return False
        raise EnvironmentProblem(name, value, "one of 1, 0, true, false, yes, no, on, off")

    def integer(self, name: str, default: int, *, low: int, high: int) -> int:
        """A whole number within its bounds."""
        value = self.text(name, str(default))
        try:
            number = int(value)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise EnvironmentProblem(name, value, f"an integer from {low} to {high}")
        return number

    def optional_integer(self, name: str, *, low: int, high: int) -> int | None:
        """A whole number within its bounds; None where it is unset or empty."""
        return self.integer(name, low, low=low, high=high) if self.text(name, "") else None

    def number(self, name: str, default: float, *, low: float, high: float) -> float:
        """A number within its bounds."""
        value = self.text(name, str(default))
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if not low <= number <= high:
            raise EnvironmentProblem(name, value, f"a number from {low:g} to {high:g}")
        return number

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        """One of `choices`."""
        value = self.text(name, default)
        if value not in choices:
            raise EnvironmentProblem(name, value, "one of " + ", ".join(choices))
        return value

    def name(self, name: str, default: str) -> str:
        """A name that can stand in an address, a Redis key and the name of a group of consoles."""
        value = self.text(name, default)
        if not POOL_NAME.fullmatch(value):
            raise EnvironmentProblem(name, value, f"a name of {POOL_NAME_IN_WORDS}")
        return value

    def folder(self, name: str, default: Path) -> Path:
        """A folder's path, absolute, `~` read as a shell reads it; the folder need not be there."""
        value = self.text(name, str(default))
        try:
            return Path(value).expanduser().absolute()
        except RuntimeError:
            raise EnvironmentProblem(name, value, "a folder's path ('~' here is nobody's home)") from None

    def words(self, name: str, default: str) -> list[str]:
        """A list separated by commas."""
        return [word.strip() for word in self.text(name, default).split(",") if word.strip()]


def process_environment() -> Environment:
    """The environment of this process."""
    return Environment(os.environ)


def embedded_socket(home: Path) -> Path:
    """Where the embedded Valkey listens: under `home`, or in the temporary folder where that path is too long."""
    path = home / "valkey" / "valkey.sock"
    if len(os.fsencode(path)) <= _LONGEST_SOCKET_PATH:
        return path
    digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"footplate-{digest}.sock"


def read_secret(path: Path) -> str:
    """The secret kept in `path`; one that this process alone has where there is none. Raises OSError."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return secrets.token_urlsafe(48)


def stored_secret(path: Path) -> str:
    """The secret kept in `path`; made there, readable by its owner alone, where it does not exist yet.

    It is there whole or not at all, whoever makes it at the same time. Raises OSError.
    """
    if path.exists():
        return path.read_text().strip()
    descriptor, new = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(48))
        with contextlib.suppress(FileExistsError):
            os.link(new, path)
    finally:
        os.unlink(new)
    return path.read_text().strip()
