"""Play a simple workload against an OpenAI-compatible server and measure what its clients see: for comparing peers.

Open-loop arrivals never wait for answers, and latency counts from the time when a request was due, so that a slow
server cannot hide its queue by slowing its load down (coordinated omission). Prompts are random token ids: no prefix
cache helps.

The Lab has a load tester of its own (`serving.lab.playing`), which is no part of this on purpose. Figures of peers stay
comparable with those of earlier rounds: the same prompts for the same seed, and gaps between arrivals of text, where
the Lab's tester spreads a gap over the tokens that a Footplate says came with it, which peers do not say. And the Lab's
tester has something to be checked against that shares no code with it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import aiohttp
import numpy as np

_FIRST_TOKEN_ID, _LAST_TOKEN_ID = 1000, 40_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is played. `rate` is in requests a second (Poisson arrivals); None means a closed loop of `concurrency`."""

    num_requests: int
    concurrency: int
    rate: float | None
    prompt_tokens: tuple[int, int]
    output_tokens: int
    seed: int


@dataclasses.dataclass(slots=True)
class Outcome:
    """One request as its client saw it; times in seconds of one monotonic clock."""

    due: float
    num_prompt_tokens: int
    num_output_tokens: int = 0
    arrivals: list[float] = dataclasses.field(default_factory=list)
    end: float = 0.0
    error: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Who is asked. `pool` is of a Footplate alone: the pool that is to serve; None leaves the choice to the server."""

    url: str
    key: str
    model: str
    pool: str | None = None


def prompts(workload: Workload) -> list[list[int]]:
    """Random token ids, the same for the same seed."""
    rng = random.Random(workload.seed)
    low, high = workload.prompt_tokens
    return [
        [rng.randint(_FIRST_TOKEN_ID, _LAST_TOKEN_ID) for _ in range(rng.randint(low, high))]
        for _ in range(workload.num_requests)
    ]


def due_times(workload: Workload) -> list[float]:
    """Seconds after the start at which each request is due, for a workload with a rate (Poisson arrivals)."""
    assert workload.rate is not None, "a closed loop has no due times"
    rng = random.Random(workload.seed + 1)
    gaps = (rng.expovariate(workload.rate) for _ in range(workload.num_requests - 1))
    return list(itertools.accumulate(gaps, initial=0.0))


async def play(workload: Workload, target: Target, *, progress: Callable[[int], None]) -> dict[str, Any]:
    """Run the workload to its end; returns `summarise` of it. `progress` hears the number of ended requests."""
    async with client_session() as session:
        start = time.monotonic()
        run = _run_closed if workload.rate is None else _run_open
        outcomes: list[Outcome] = []
        async for outcome in run(workload, target, session, start):
            outcomes.append(outcome)
            progress(len(outcomes))
        return summarise(workload, outcomes, wall_seconds=time.monotonic() - start)


def client_session() -> aiohttp.ClientSession:
    """What requests are made with: as many at once as there are, each over a connection of its own, since a kept one
    that the server closes at that moment would count as the server's failure."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=3600))


async def _run_closed(
    workload: Workload, target: Target, session: aiohttp.ClientSession, _start: float
) -> AsyncIterator[Outcome]:
    todo = iter(prompts(workload))
    done: asyncio.Queue[Outcome] = asyncio.Queue()

    async def client() -> None:
        for prompt in todo:
            outcome = Outcome(time.monotonic(), len(prompt))
            await ask(target, session, prompt, workload.output_tokens, into=outcome)
            await done.put(outcome)

    clients = [asyncio.create_task(client()) for _ in range(workload.concurrency)]
    for _ in range(workload.num_requests):
        yield await done.get()
    await asyncio.gather(*clients)


async def _run_open(
    workload: Workload, target: Target, session: aiohttp.ClientSession, start: float
) -> AsyncIterator[Outcome]:
    async def request(prompt: list[int], due: float) -> Outcome:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        outcome = Outcome(due, len(prompt))
        await ask(target, session, prompt, workload.output_tokens, into=outcome)
        return outcome

    arrivals = zip(prompts(workload), due_times(workload), strict=True)
    requests = [asyncio.create_task(request(prompt, start + offset)) for prompt, offset in arrivals]
    for ended in asyncio.as_completed(requests):
        yield await ended


async def ask(
    target: Target, session: aiohttp.ClientSession, prompt: list[int], max_tokens: int, *, into: Outcome
) -> None:
    """Stream one greedy completion of exactly `max_tokens` and write down in `into`, as it comes, what the client sees.

    A failure is written down too; whoever cancels the call finds there what had come until then.
    """
    body = {
        "model": target.model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **({} if target.pool is None else {"pool": target.pool}),
    }
    headers = {"Authorization": f"Bearer {target.key}"}
    try:
        async with session.post(f"{target.url}/v1/completions", json=body, headers=headers) as response:
            if response.status != 200:
                into.error = f"{response.status} {(await response.text())[:200]}"
            else:
                await _read_stream(response, into)
    except (aiohttp.ClientError, TimeoutError) as error:
        into.error = f"{type(error).__name__}: {error}"
    into.end = time.monotonic()


async def _read_stream(response: aiohttp.ClientResponse, outcome: Outcome) -> None:
    async for line in response.content:
        now = time.monotonic()
        data = line.strip().removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or data == b"[DONE]":
            continue
        event = json.loads(data)
        if "error" in event:
            outcome.error = str(event["error"].get("message"))
            return
        if event.get("usage"):
            outcome.num_output_tokens = event["usage"]["completion_tokens"]
        if any(choice["text"] for choice in event["choices"]):
            outcome.arrivals.append(now)


def summarise(workload: Workload, outcomes: Sequence[Outcome], *, wall_seconds: float) -> dict[str, Any]:
    """Throughput and latency as the clients saw them; latencies in milliseconds, failures left out of them."""
    good = [outcome for outcome in outcomes if outcome.error is None and outcome.arrivals]
    gaps = [later - earlier for outcome in good for earlier, later in itertools.pairwise(outcome.arrivals)]
    return {
        "workload": dataclasses.asdict(workload),
        "num_requests": len(outcomes),
        "num_failed": len(outcomes) - len(good),
        "first_error": next((outcome.error for outcome in outcomes if outcome.error), None),
        "wall_seconds": round(wall_seconds, 3),
        "output_tokens_per_second": round(sum(outcome.num_output_tokens for outcome in good) / wall_seconds, 1),
        "prompt_tokens_per_second": round(sum(outcome.num_prompt_tokens for outcome in good) / wall_seconds, 1),
        "ttft_ms": percentiles_ms([outcome.arrivals[0] - outcome.due for outcome in good]),
        "itl_ms": percentiles_ms(gaps),
        "e2e_ms": percentiles_ms([outcome.end - outcome.due for outcome in good]),
    }


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float] | None:
    """Mean, p50, p90, p95, p99 and the largest of `seconds`, in milliseconds; none of none."""
    if not seconds:
        return None
    values = np.asarray(seconds) * 1e3
    p50, p90, p95, p99 = np.percentile(values, (50, 90, 95, 99))
    named = {"mean": values.mean(), "p50": p50, "p90": p90, "p95": p95, "p99": p99, "max": values.max()}
    return {name: round(float(value), 1) for name, value in named.items()}
