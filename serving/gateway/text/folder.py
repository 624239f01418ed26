"""Reads the JSON files of a model's folder, and says plainly what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class ModelTextProblem(Exception):
    """A model's folder cannot be used for text; the message names folder and file."""

    def __init__(self, folder: Path, file: str, reason: str) -> None:
        super().__init__(f"model folder {folder}: {file} {reason}")
        self.folder = folder
        self.file = file


def read_object(folder: Path, file: str) -> dict[str, Any]:
    """The JSON object in `file`. Raises `ModelTextProblem` where it is missing, unreadable or no object."""
    content = read_text(folder, file)
    if content is None:
        raise ModelTextProblem(folder, file, "is missing")
    try:
        value = json.loads(content)
    except ValueError as error:
        raise ModelTextProblem(folder, file, f"is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ModelTextProblem(folder, file, "holds no JSON object")
    return value


def read_optional_object(folder: Path, file: str) -> dict[str, Any]:
    """As `read_object`; empty where the file does not exist."""
    return read_object(folder, file) if (folder / file).exists() else {}


def read_text(folder: Path, file: str) -> str | None:
    """The file's text, `None` where it does not exist. Raises `ModelTextProblem` where it cannot be read."""
    try:
        return (folder / file).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelTextProblem(folder, file, f"cannot be read ({error})") from error
