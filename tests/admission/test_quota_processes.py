"""Three processes at one door (C82: check-then-charge would let parallel requests exceed a quota several times)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from serving.contracts import keys
from tests.admission.quota_process import GO, POOL, READY, SUBJECT

pytestmark = pytest.mark.stack

_REPOSITORY = Path(__file__).parents[2]
_COUNTS = (67, 67, 66)
_LONGEST_REQUEST = 15


@pytest.fixture
def redis(valkey: str) -> Iterator[Redis]:
    with Redis.from_url(valkey) as client:
        yield client


def at_once(url: str, redis: Redis, **quotas: int) -> tuple[list[dict[str, Any]], int]:
    """What became of 200 requests that three processes let in at the same time, and the highest sum of the minute's
    tokens that was seen in Redis meanwhile."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.admission.quota_process", url, str(count), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_REPOSITORY,
        )
        for seed, count in enumerate(_COUNTS)
    ]
    try:
        for process in processes:
            assert process.stdin is not None, "it has a pipe"
            process.stdin.write(json.dumps(quotas) + "\n")
            process.stdin.flush()
        for _ in processes:
            assert redis.blpop([READY], timeout=60) is not None, "a process did not start"
        redis.rpush(GO, *range(len(processes)))
        highest = 0
        while any(process.poll() is None for process in processes):
            highest = max(highest, tokens_of_the_minute(redis))
        told = [json.loads(line) for process in processes for line in process.communicate(timeout=60)[0].splitlines()]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(told) == 200
    return told, highest


def tokens_of_the_minute(redis: Redis) -> int:
    return int(redis.hget(keys.quota_book(SUBJECT), "tokens") or 0)  # type: ignore[arg-type]


def field(redis: Redis, name: str) -> int:
    return int(redis.hget(keys.quota_book(SUBJECT), name) or 0)  # type: ignore[arg-type]


def test_two_hundred_parallel_requests_never_exceed_a_token_quota_by_one_token(valkey: str, redis: Redis) -> None:
    """C82."""
    told, highest = at_once(valkey, redis, tokens_per_minute=100)
    admitted = [one for one in told if one["code"] is None]
    refused = [one for one in told if one["code"] is not None]
    used = sum(one["used"] for one in admitted)
    assert used <= 100
    assert highest <= 100
    assert {one["code"] for one in refused} == {"rate_limit_exceeded"}
    # At some moment no further request fitted, and of what was reserved then, each used more than half.
    assert used > (100 - _LONGEST_REQUEST) / 2
    assert tokens_of_the_minute(redis) == used
    assert [field(redis, name) for name in ("requests", "open")] == [len(admitted), 0]
    assert redis.zcard(keys.permits(POOL)) == 0


def test_two_hundred_parallel_requests_never_exceed_the_requests_of_a_minute(valkey: str, redis: Redis) -> None:
    told, _ = at_once(valkey, redis, requests_per_minute=60)
    assert sum(one["code"] is None for one in told) == 60
    assert field(redis, "requests") == 60


def test_two_hundred_parallel_requests_never_run_more_at_once_than_they_may(valkey: str, redis: Redis) -> None:
    told, _ = at_once(valkey, redis, max_concurrent_requests=5)
    admitted = [one for one in told if one["code"] is None]
    assert 5 <= len(admitted) < 200
    assert max(one["running"] for one in admitted) <= 5
    assert field(redis, "open") == 0
