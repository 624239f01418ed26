"""Two commands at once, as `make test` runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "side_by_side.py"


def run(command: str, beside: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, command, beside], capture_output=True, text=True, check=False)


def test_what_runs_beside_is_heard_after_the_other_and_yields_to_it() -> None:
    done = run("echo first; nice", "echo second; nice; cat /proc/self/autogroup 2>/dev/null || echo nice 19")
    assert (done.returncode, done.stderr) == (0, "")
    first, own, second, others, group = done.stdout.splitlines()
    assert (first, own, second, others) == ("first", str(os.nice(0)), "second", "19")
    assert group.endswith("nice 19")


@pytest.mark.parametrize(
    ("command", "beside"),
    [("exit 3", "exec sleep 600"), ("exec sleep 600", "echo why; exit 3")],
    ids=["the first", "the second"],
)
def test_whoever_fails_ends_both(command: str, beside: str) -> None:
    done = run(command, beside)
    assert done.returncode == 3
    assert "why" in done.stdout or "why" not in beside
