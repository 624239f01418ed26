"""Tests once more, in a process of their own over PostgreSQL: what holds on SQLite need not hold there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run_tests_on_postgresql(url: str, files: Iterable[str]) -> None:
    """Run these files of tests over the database at `url`; what fails there fails here."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        env={**os.environ, "TESTS_DATABASE_URL": url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
