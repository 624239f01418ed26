"""The monitor as a process: it finds pools in the database, and leaves cleanly when told to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from redis import Redis

from serving.contracts import keys
from serving.contracts.ids import PoolName
from serving.contracts.messages import decode_announced
from serving.contracts.tunables import Tunables

ROOT = Path(__file__).resolve().parent.parent.parent
MAKE_POOL = "from serving.tuning.services import ensure_pool; ensure_pool('nightly', 'tiny')"


def manage(*arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "manage.py"), *arguments]


@pytest.fixture
def environment(tmp_path: Path, valkey: str) -> dict[str, str]:
    """Of processes that find a database with one pool, and a Redis that holds nothing."""
    settings = {
        "FOOTPLATE_HOME": str(tmp_path),
        "REDIS_URL": valkey,
        "DJANGO_SETTINGS_MODULE": "serving.config.settings",
    }
    environment = {**os.environ, **settings}
    for arguments in (("migrate", "-v0"), ("shell", "-v0", "-c", MAKE_POOL)):
        subprocess.run(manage(*arguments), env=environment, check=True, timeout=120)
    return environment


@pytest.mark.stack
def test_announces_a_stored_pool_and_leaves_cleanly_on_sigterm(environment: dict[str, str]) -> None:
    announced = keys.announced_tunables(PoolName("nightly"))
    with Redis.from_url(environment["REDIS_URL"]) as redis:
        process = subprocess.Popen(manage("runmonitor"), env=environment, stderr=subprocess.PIPE)
        try:
            deadline = time.monotonic() + 60
            while redis.get(announced) is None:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=20)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 0, log.decode()
        assert b"Traceback" not in log
        assert redis.get(keys.monitor_lease()) is None
        assert decode_announced(redis.get(announced)).tunables == Tunables()
