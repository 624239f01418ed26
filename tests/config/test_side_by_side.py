"""Two commands at once, as `make test` runs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.config.toys import wait_for

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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whoever_stops_it_stops_both(number: signal.Signals, tmp_path: Path) -> None:
    each = [f"echo $$ > {tmp_path}/{name}; mv {tmp_path}/{name} {tmp_path}/{name}.pid; exec sleep 600" for name in "ab"]
    both = subprocess.Popen([sys.executable, SCRIPT, *each])
    wait_for(lambda: len(list(tmp_path.glob("*.pid"))) == 2)
    pids = [int(path.read_text()) for path in tmp_path.glob("*.pid")]
    both.send_signal(number)
    assert both.wait() == 128 + number
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
