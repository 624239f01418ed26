"""Hours in minutes: clients that come, read, leave early and ask nonsense, while an operator turns every lever."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from serving.contracts.tunables import TunableSpec, describe
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.model, pytest.mark.timeout(3600)]

MODEL = "SmolLM2-135M-Instruct"
NUM_CLIENTS = 12


@pytest.mark.parametrize(
    "seconds", [pytest.param(20, id="sample"), pytest.param(1500, id="long", marks=pytest.mark.long)]
)
async def test_books_balance_and_nothing_leaks(own_stack: Callable[..., Stack], seconds: int) -> None:
    stack = own_stack(FOOTPLATE_KV_CACHE_MB="24").start()
    rng = random.Random(seconds)
    async with httpx.AsyncClient(base_url=stack.url, headers=stack.headers, timeout=120) as client:
        await run_clients(client, rng, seconds=seconds / 4)
        early = resident_bytes(stack)
        stop_at = time.monotonic() + seconds * 3 / 4
        operator = asyncio.create_task(turn_levers(client, rng, stop_at))
        await run_clients(client, rng, seconds=seconds * 3 / 4)
        await operator
    idle = await asyncio.to_thread(stack.wait_until_idle)
    assert idle["kv_blocks_free"] + idle["kv_blocks_cached"] == idle["kv_blocks_total"]
    settled = await asyncio.to_thread(
        stack.wait_for, lambda s: s["outcomes"]["waiting"] == s["outcomes"]["running"] == 0
    )
    outcomes = settled["outcomes"]
    ended = sum(
        count for name, count in outcomes.items() if name.startswith(("finished", "aborted", "refused", "failed"))
    )
    assert outcomes["submitted"] == ended
    assert outcomes["finished:length"] > 0
    assert outcomes["aborted"] > 0
    assert not [name for name in outcomes if name.startswith("failed")], outcomes
    later = resident_bytes(stack)
    for name, size in later.items():
        assert size < early[name] * 1.3 + 30e6, f"{name} grew from {early[name]:.0f} to {size:.0f} bytes"
    assert await asyncio.to_thread(stack.stop) == 0


async def run_clients(client: httpx.AsyncClient, rng: random.Random, *, seconds: float) -> None:
    stop_at = time.monotonic() + seconds
    await asyncio.gather(*(behave(client, random.Random(rng.random()), stop_at) for _ in range(NUM_CLIENTS)))


async def behave(client: httpx.AsyncClient, rng: random.Random, stop_at: float) -> None:
    """One client: mostly proper requests, read to the end or not, and some that must be refused."""
    while time.monotonic() < stop_at:
        body = {
            "model": MODEL,
            "prompt": [rng.randint(1000, 40_000) for _ in range(rng.randint(1, 400))],
            "max_tokens": rng.randint(1, 60),
            "seed": rng.randint(0, 99),
            "temperature": rng.choice([0, 0.7, 1.5]),
            "top_p": rng.choice([1, 0.9]),
            "top_k": rng.choice([0, 40]),
            "n": rng.choice([1, 1, 1, 3]),
            "ignore_eos": True,
            "stream": rng.random() < 0.7,
        }
        if rng.random() < 0.1:
            body["max_tokens"] = rng.choice([0, -1, 10**9, "5", None, 1.5])
        patience = rng.choice([0.05, 0.5, 60, 60])
        try:
            async with asyncio.timeout(patience), client.stream("POST", "/v1/completions", json=body) as answer:
                await answer.aread()
            assert answer.status_code < 500 or answer.status_code == 503, answer.text
        except TimeoutError:
            pass


async def turn_levers(client: httpx.AsyncClient, rng: random.Random, stop_at: float) -> None:
    while time.monotonic() < stop_at:
        await asyncio.sleep(0.5)
        spec = rng.choice([spec for spec in describe() if spec.kind != "name"])  # there is no other pool to name
        answer = await client.patch(
            "/ops/v1/pools/default/tunables", json={"changes": {spec.name: random_value(spec, rng)}, "reason": "soak"}
        )
        assert answer.status_code == 200 or "changes nothing" in answer.text or answer.status_code == 400, answer.text
    changes = {spec.name: spec.default for spec in describe()}
    assert (await client.patch("/ops/v1/pools/default/tunables", json={"changes": changes})).status_code in {200, 400}


def random_value(spec: TunableSpec, rng: random.Random) -> object:
    """A value that its bounds admit and that lets a small machine go on."""
    sensible = {
        "batch_window_ms": (0, 200),
        "max_running": (1, 16),
        "max_batch_tokens": (16, 1024),
        "max_prefill_chunk": (1, 512),
        "max_queue_requests": (1, 64),
        "max_queue_tokens": (500, 20_000),
        "max_queue_wait_ms": (500, 60_000),
        "urgent_queue_ratio": (0, 0.5),
        "slo_ttft_ms": (500, 60_000),
        "slo_itl_ms": (50, 1000),
        "kv_limit_ratio": (0.1, 1),
        "kv_watermark_ratio": (0, 0.3),
        "prefill_share": (0, 1),
        "long_prompt_tokens": (20, 400),
        "max_long_prefills": (1, 4),
        "max_draft_tokens": (1, 16),
    }
    if spec.kind == "choice":
        return rng.choice(spec.choices)
    low, high = sensible[spec.name]
    return rng.randint(int(low), int(high)) if spec.kind == "integer" else round(rng.uniform(low, high), 3)


def resident_bytes(stack: Stack) -> dict[str, float]:
    """Memory of each child, by its command."""
    sizes = {}
    for command, pid in stack.pids().items():
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        sizes[command] = pages * 4096.0
    return sizes
