"""How a process ends: what its threads have begun comes to its end, and nothing is taken apart after that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROCESS = """
import atexit, concurrent.futures, sys, time
import django.core.management, manage

class Loaded:
    def __del__(self):
        print("taken apart")

def work():
    time.sleep(0.5)
    print("worked")

def execute(arguments):
    concurrent.futures.ThreadPoolExecutor(1).submit(work)
    atexit.register(print, "told")
    if int(sys.argv.pop()):
        sys.exit(3)

loaded = Loaded()
django.core.management.execute_from_command_line = execute
sys.argv = ["manage.py", *sys.argv[1:]]
manage.main()
"""


@pytest.mark.parametrize(
    ("command", "fails", "ends"),
    [("runmonitor", "0", (0, "worked told")), ("runmonitor", "1", (3, "worked told taken apart"))],
    ids=["well", "badly"],
)
def test_what_threads_have_begun_is_done(command: str, fails: str, ends: tuple[int, str]) -> None:
    code = [sys.executable, "-c", PROCESS, command, fails]
    done = subprocess.run(code, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, " ".join(done.stdout.split())) == ends, done.stderr
