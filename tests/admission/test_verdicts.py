"""What the simulator asks in place of the door is what the door's script decides."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from serving.admission.door import Door
from serving.admission.permits import Weight
from serving.admission.verdicts import overfills_queue
from serving.contracts.errors import QueueFull
from serving.contracts.ids import PoolName
from serving.contracts.tunables import Tunables

WEIGHTS = st.builds(Weight, sequences=st.integers(1, 4), tokens=st.integers(0, 60))


@given(asked=st.lists(WEIGHTS, min_size=1, max_size=8), requests=st.integers(1, 10), tokens=st.integers(1, 150))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.asyncio
async def test_it_decides_as_the_script_does(valkey: str, asked: Sequence[Weight], requests: int, tokens: int) -> None:
    tunables = Tunables().changed({"max_queue_requests": requests, "max_queue_tokens": tokens})
    async with Redis.from_url(valkey) as redis:
        await redis.flushall()
        door = Door(redis)
        waiting = Weight(0, 0)
        for weight in asked:
            expected = overfills_queue(waiting, weight, tunables=tunables)
            try:
                await door.enter(PoolName("p"), [weight], tunables=tunables)
            except QueueFull:
                assert expected
            else:
                assert not expected
                waiting = Weight(waiting.sequences + weight.sequences, waiting.tokens + weight.tokens)
