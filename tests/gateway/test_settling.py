"""What the gateway tells the door of its requests: what they used so far, and at their end, once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from serving.contracts.accounting import Spent
from tests.gateway.harness import Harness, RunningWorker, eventually, read, read_until_error

StartWorker = Callable[..., RunningWorker]
StartGateway = Callable[..., Any]


@pytest.fixture
async def harness(start_worker: StartWorker, start_gateway: StartGateway) -> tuple[Harness, RunningWorker]:
    running = start_worker()
    harness = await start_gateway()
    await eventually(lambda: bool(harness.gateway.pools()[0].has_engines))
    return harness, running


def is_idle(running: RunningWorker) -> bool:
    snapshot = running.snapshot()
    return snapshot.num_running == snapshot.num_waiting == snapshot.kv_blocks_used == 0


async def test_end_tells_what_was_used_once_whatever_the_end(harness: tuple[Harness, RunningWorker]) -> None:
    gateway, running = harness
    running.runner.scripts[1] = running.runner.scripts[2] = gateway.tokens("fine words")
    finished = gateway.ask(1, 2, permit="finished")
    await read(finished)
    running.runner.scripts[3] = gateway.tokens("word " * 300)
    aborted = gateway.ask(3, max_tokens=300, permit="aborted")
    async for _ in aborted:
        break
    await aborted.aclose()
    running.runner.scripts[4] = gateway.tokens("x y z")
    running.runner.failing_seeds.add(4)
    failed = gateway.ask(4, permit="failed")
    await read_until_error(failed)
    refused = gateway.ask(5, max_tokens=5000, permit="refused")
    await read_until_error(refused)
    await eventually(lambda: len(gateway.room.closed) == 4)
    for stream in (finished, aborted, failed, refused):
        await stream.aclose()
    told = {permit: (spent, still_waits) for permit, spent, still_waits in gateway.room.closed}
    assert len(gateway.room.closed) == len(told) == 4
    for permit, stream in (("finished", finished), ("aborted", aborted), ("failed", failed)):
        usage = stream.usage
        assert told[permit] == (Spent(usage.prompt_tokens, usage.completion_tokens), False)
    assert told["finished"][0].completion_tokens > 2
    assert told["aborted"][0].completion_tokens > 0
    # What no engine ever began has used nothing, and leaves the waiting room with its end.
    assert told["refused"] == (Spent(), True)


@pytest.mark.waits
async def test_renewals_report_what_was_used_so_far_also_after_the_permit_was_released(
    harness: tuple[Harness, RunningWorker],
) -> None:
    gateway, running = harness
    running.runner.scripts[1] = gateway.tokens("word " * 900)
    running.runner.step_seconds = 0.01
    stream = gateway.ask(1, max_tokens=900, permit="a permit")
    await stream.started()
    await eventually(lambda: any(spent.completion_tokens > 0 for _, spent in gateway.room.renewed))
    permit, spent = gateway.room.renewed[-1]
    assert permit == "a permit"
    assert spent.prompt_tokens == stream.usage.prompt_tokens
    assert gateway.room.released == ["a permit"]
    await stream.aclose()
    await eventually(lambda: is_idle(running))
