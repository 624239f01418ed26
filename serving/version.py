"""Which version of Footplate this is."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path

_PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


@functools.cache
def software_version() -> str:
    """The version as pyproject.toml has it: the one place where it is written down."""
    return str(tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["version"])
