"""A sweep on a real engine whose player is killed: the pool's tunables come back all the same."""

from __future__ import annotations

import subprocess
import sys
import time

import httpx
import pytest

from tests.e2e.conftest import MakeStack
from tests.e2e.stack import REPOSITORY, Stack

pytestmark = [pytest.mark.model, pytest.mark.stack]

_SETTLE = """
import datetime
import django
django.setup()
from django.utils import timezone
from serving.lab.models import Experiment
from serving.lab.runs.working import new_redis, settle_orphans
Experiment.objects.update(beaten_at=timezone.now() - datetime.timedelta(minutes=5))
with new_redis() as redis:
    settle_orphans(redis=redis)
"""
"""What the Lab's process does once an experiment gave no sign of life for a minute."""


def max_running_of(stack: Stack) -> int:
    answer = httpx.get(f"{stack.url}/ops/v1/pools/default/tunables", headers=stack.headers, timeout=30)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["values"]["max_running"])


def test_a_killed_sweep_leaves_no_tunable_changed(own_stack: MakeStack) -> None:
    stack = own_stack().start()
    before = max_running_of(stack)
    player = subprocess.Popen(
        [sys.executable, "manage.py", "sweep", "--workload", "chat", "--set-dimension", "max_running=2,4"],
        cwd=REPOSITORY,
        env=stack.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while max_running_of(stack) != 2:
            assert time.monotonic() < deadline, "the sweep changed nothing"
            assert player.poll() is None, "the sweep has ended"
            time.sleep(0.1)
    finally:
        player.kill()
        player.wait()
    assert max_running_of(stack) == 2
    environment = stack.environment | {"DJANGO_SETTINGS_MODULE": "serving.config.settings"}
    subprocess.run([sys.executable, "-c", _SETTLE], cwd=REPOSITORY, env=environment, check=True)
    assert max_running_of(stack) == before
    stack.wait_for(lambda snapshot: all(engine["tunables_version"] >= 3 for engine in snapshot["engines"]))
