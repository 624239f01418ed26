"""A process that lets many requests of one key in at once: `python -m tests.admission.quota_process URL COUNT SEED`.

Reads a line of JSON, the key's quotas, and begins when told so; prints a line of JSON for each request: why it was
refused, if it was, and what it had reserved and used. The door is the real one; what a request uses is made up. Each
counts itself in Redis while it runs.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis

from serving.admission.accounts import Account, Charge
from serving.admission.door import Door
from serving.admission.permits import Weight
from serving.contracts.accounting import Spent
from serving.contracts.errors import DomainError
from serving.contracts.ids import PoolName
from serving.contracts.quotas import Quotas
from serving.contracts.tunables import Tunables

POOL = PoolName("default")
SUBJECT = "key:abc"
READY, GO, RUNNING = "test:ready", "test:go", "test:running"


async def run(url: str, count: int, *, seed: int) -> None:
    """Tell that this process is ready, wait for the word, let `count` requests in at once, and say what became of
    each."""
    quotas = json.loads(sys.stdin.readline())
    redis = Redis(connection_pool=BlockingConnectionPool.from_url(url, max_connections=32, timeout=30))
    draw = random.Random(seed)
    door = Door(redis)
    account = Account(charges=(Charge(SUBJECT, Quotas(**quotas)),))
    await redis.rpush(READY, seed)
    await redis.blpop([GO])
    plans = [(draw.randint(1, 6), draw.randint(1, 6), draw.randint(1, 9)) for _ in range(count)]
    told = await asyncio.gather(*(_request(redis, door, account, plan) for plan in plans))
    print("\n".join(map(json.dumps, told)), flush=True)
    await redis.aclose()


async def _request(redis: Redis, door: Door, account: Account, plan: tuple[int, int, int]) -> dict[str, Any]:
    estimate, num_prompt_tokens, max_tokens = plan
    reserved = num_prompt_tokens + max_tokens
    tunables = Tunables()
    try:
        weight = Weight(1, estimate, estimate + max_tokens)
        (permit,) = await door.enter(POOL, [weight], tunables=tunables, account=account)
    except DomainError as error:
        return {"code": error.code, "reserved": 0, "used": 0, "running": 0}
    try:
        permit = await door.settle(permit, Weight(1, num_prompt_tokens, reserved), tunables=tunables)
    except DomainError as error:
        await door.close(permit, Spent())
        return {"code": error.code, "reserved": 0, "used": 0, "running": 0}
    running = await redis.incr(RUNNING)
    spent = Spent(num_prompt_tokens, max_tokens - max_tokens // 3)
    await door.release(permit)
    await door.renew([(permit, spent)])
    await redis.decr(RUNNING)
    await door.close(permit, spent, still_waits=False)
    return {"code": None, "reserved": reserved, "used": spent.tokens, "running": running}


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2]), seed=int(sys.argv[3])))
