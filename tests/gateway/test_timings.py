"""How long a request took, as its caller hears at its end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.gateway.harness import RunningWorker, eventually, read


@pytest.mark.parametrize("stop", [(), ("five",)])
async def test_usage_tells_how_long_a_request_took_whoever_ended_it(
    start_worker: Callable[..., RunningWorker], start_gateway: Callable[..., Any], stop: tuple[str, ...]
) -> None:
    running = start_worker()
    gateway = await start_gateway()
    await eventually(lambda: bool(gateway.gateway.pools()[0].has_engines))
    running.runner.scripts[1] = running.runner.scripts[2] = gateway.tokens("one, two, three, four, five, six")
    goes_on = threading.Event()
    running.runner.held = 3, goes_on
    stream = gateway.ask(1, 2, stop=stop)
    assert stream.usage.timings is None
    await anext(stream)
    seen_at = time.monotonic()
    await asyncio.sleep(0.05)
    held_seconds = time.monotonic() - seen_at
    goes_on.set()
    await read(stream)
    timings = stream.usage.timings
    assert timings is not None
    assert timings.decode_seconds >= held_seconds
    assert timings.prefill_seconds >= running.runner.step_seconds
    assert timings.num_preemptions == 0
