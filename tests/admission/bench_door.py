"""What admission costs: `python -m tests.admission.bench_door`. Prints figures; asserts nothing.

- microseconds of `enter`, `settle`, `release` and `close`, one client asking one after another, beside a bare PING in
  the same run, and the server's own part of it: with no quotas, with a tenant's, and with a tenant's and a key's;
- requests let in, run and ended a second by one process, the door alone, many of them at a time, and the processor time
  of this process that each costs.
"""

from __future__ import annotations

import asyncio
import datetime
import statistics
import sys
import time
from collections.abc import Awaitable
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis

from serving.admission.accounts import Account, Charge
from serving.admission.door import Door
from serving.admission.permits import Weight
from serving.admission.spent_before import SpentBefore
from serving.contracts.accounting import Spent
from serving.contracts.ids import PoolName
from serving.contracts.quotas import Quotas
from serving.contracts.tunables import Tunables
from tests.servers import running_valkey

POOL = PoolName("default")
WIDE = Tunables(max_queue_requests=100_000, max_queue_tokens=100_000_000)
BOUNDED = Quotas(
    requests_per_minute=10**9,
    tokens_per_minute=10**12,
    tokens_per_day=10**14,
    tokens_per_month=10**15,
    max_concurrent_requests=10**6,
)
ACCOUNTS = {
    "no quotas": Account(),
    "a tenant's quotas": Account(charges=(Charge("tenant:1", BOUNDED),)),
    "a tenant's and a key's": Account(charges=(Charge("tenant:1", BOUNDED), Charge("key:abc", BOUNDED))),
}
_ESTIMATED, _SETTLED, _SPENT = Weight(1, 100, 356), Weight(1, 90, 346), Spent(90, 100)
_NUM_TIMED = 2000
_NUM_AT_ONCE = 32
_SECONDS = 5.0


async def measure(url: str) -> None:
    """Measure and print, against the Valkey at `url`."""
    redis = Redis(connection_pool=BlockingConnectionPool.from_url(url, max_connections=_NUM_AT_ONCE, timeout=30))
    door = Door(redis, spent_before=SpentBefore(_nothing))
    for name, account in ACCOUNTS.items():
        await redis.flushall()
        _say(f"{name}:")
        await _time_each(redis, door, account)
        await _count(door, account)
    await redis.aclose()


async def _time_each(redis: Redis, door: Door, account: Account) -> None:
    times: dict[str, list[float]] = {}

    async def timed(what: str, call: Awaitable[Any]) -> Any:
        began = time.perf_counter()
        result = await call
        times.setdefault(what, []).append((time.perf_counter() - began) * 1e6)
        return result

    await redis.config_resetstat()
    for _ in range(_NUM_TIMED):
        await timed("PING", redis.ping())
        (permit,) = await timed("enter", door.enter(POOL, [_ESTIMATED], tunables=WIDE, account=account))
        permit = await timed("settle", door.settle(permit, _SETTLED, tunables=WIDE))
        await timed("release", door.release(permit))
        await timed("close", door.close(permit, _SPENT, still_waits=False))
    middle = {what: statistics.median(found) for what, found in times.items()}
    whole = middle["enter"] + middle["settle"] + middle["close"]
    _say("  median: " + ", ".join(f"{what} {value:.0f} µs" for what, value in middle.items()))
    _say(f"  enter, settle and close: {whole:.0f} µs, {whole / middle['PING']:.1f} times a PING")
    scripts = (await redis.info("commandstats"))["cmdstat_evalsha"]
    server_us = scripts["usec"] / _NUM_TIMED
    _say(f"  the server's own time: {server_us:.0f} µs a request, in {scripts['calls'] / _NUM_TIMED:.0f} calls")


async def _count(door: Door, account: Account) -> None:
    ends_at, num_done = time.perf_counter() + _SECONDS, 0

    async def keep_asking() -> None:
        nonlocal num_done
        while time.perf_counter() < ends_at:
            (permit,) = await door.enter(POOL, [_ESTIMATED], tunables=WIDE, account=account)
            permit = await door.settle(permit, _SETTLED, tunables=WIDE)
            await door.release(permit)
            await door.close(permit, _SPENT, still_waits=False)
            num_done += 1

    began, cpu_began = time.perf_counter(), time.process_time()
    await asyncio.gather(*(keep_asking() for _ in range(_NUM_AT_ONCE)))
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    _say(f"  one process, {_NUM_AT_ONCE} at a time: {num_done / seconds:.0f} requests/s")
    _say(f"  processor time of this process: {cpu_seconds / num_done * 1e6:.0f} µs a request")


async def _nothing(_subject: str, _since: datetime.date) -> int:
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    with running_valkey() as server:
        asyncio.run(measure(server))
