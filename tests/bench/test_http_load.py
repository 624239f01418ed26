"""What clients note, played against a server on loopback that streams as it is told."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from tests.bench import http_load, processor
from tests.bench.clients import Outcome, Target
from tests.bench.entrants import PRESETS_OF, seed_of
from tests.bench.http_load import MixedLoad, play_mixed, players, summarise_mixed


@pytest.fixture
async def target() -> AsyncIterator[Target]:
    """A server that answers with exactly the tokens asked for, and refuses whom it does not know."""

    async def complete(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if request.headers["Authorization"] != "Bearer key":
            return web.Response(status=401, text="no such key")
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(body["max_tokens"]):
            await asyncio.sleep(0)
            await response.write(b'data: {"choices": [{"text": "a"}]}\n\n')
        usage = {"choices": [], "usage": {"completion_tokens": body["max_tokens"]}}
        await response.write(b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n")
        return response

    application = web.Application()
    application.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    yield Target(url=f"http://127.0.0.1:{port}", key="key", model="m")
    await runner.cleanup()


@pytest.mark.parametrize("workload", ["w2", "w3"])
async def test_every_token_of_every_request_counts(workload: str, target: Target) -> None:
    figures = await players(quick=True)[workload](target, 5)
    assert figures["num_failed"] == 0
    assert figures["num_requests"] == (1 if workload == "w2" else 8)
    assert figures["itl_ms"]["p99"] >= figures["itl_ms"]["p50"]
    assert figures["workload"]["seed"] == 5


async def test_mixed_load_ends_though_its_streams_never_do(target: Target) -> None:
    load = MixedLoad(num_streams=2, num_long=2, gap_seconds=0.05, settle_seconds=0.05, quiet_seconds=0.05)
    figures = await play_mixed(load, target, seed=1)
    assert figures["num_failed"] == 0
    assert figures["quiet_itl_ms"]
    assert figures["itl_ms"]
    assert figures["long_ttft_ms"]
    assert figures["output_tokens_per_second"] > 0


async def test_mixed_load_tells_of_a_server_that_refuses(target: Target) -> None:
    load = MixedLoad(num_streams=1, num_long=1, gap_seconds=0.05, settle_seconds=0.01, quiet_seconds=0.01)
    stranger = Target(url=target.url, key="stranger", model="m")
    figures = await play_mixed(load, stranger, seed=1)
    assert figures["num_failed"] == 2
    assert figures["first_error"] == "401 no such key"


async def test_warm_up_fails_where_requests_do(target: Target) -> None:
    await http_load.warm_up(target)
    with pytest.raises(RuntimeError, match="401"):
        await http_load.warm_up(Target(url=target.url, key="stranger", model="m"))


def test_gaps_count_in_the_part_in_which_they_end() -> None:
    stream = Outcome(0.0, 64, arrivals=[0.5, 1.0, 1.5, 2.5, 3.5, 9.0])
    long = Outcome(2.0, 1900, arrivals=[2.7, 2.8])
    figures = summarise_mixed([stream], [long], quiet=1.0, mixed=2.0, end=4.0)
    assert figures["quiet_itl_ms"]["max"] == 500
    assert figures["quiet_tokens_per_second"] == 2
    assert figures["itl_ms"]["p50"] == 1000
    assert figures["output_tokens_per_second"] == 1
    assert figures["long_ttft_ms"]["p50"] == 700
    assert figures["num_output_tokens"] == 8
    assert figures["num_failed"] == 0


def test_prompts_of_a_round_are_the_same_for_all_and_new_in_the_next() -> None:
    first, num_tokens = http_load.offline_prompts("w1", seed=1, quick=False)
    assert (len(first), num_tokens) == (64, 128)
    assert http_load.offline_prompts("w1", seed=1, quick=False)[0] == first
    assert http_load.offline_prompts("w1", seed=2, quick=False)[0] != first
    assert [len(prompt) for prompt in http_load.offline_prompts("w2", seed=1, quick=False)[0]] == [64]


def test_no_prompts_come_twice_to_a_server_that_caches_prefixes() -> None:
    played = [(workload, preset) for workload, presets in PRESETS_OF.items() for preset in presets]
    seeds = [seed_of(workload, number, preset) for number in range(20) for workload, preset in played]
    assert len(set(seeds)) == len(seeds)


def test_processor_time_is_told_by_role_and_token() -> None:
    before, after = {"web": 1.0, "engine": 2.0}, {"web": 1.5, "engine": 4.0}
    assert processor.us_per_token(before, after, num_tokens=1000) == {"web": 500, "engine": 2000, "all": 2500}
    assert processor.us_per_token(before, after, num_tokens=0) == {}


def test_processor_time_of_this_process_grows_and_of_none_is_none() -> None:
    begun = processor.seconds_of(os.getpid())
    while processor.seconds_of(os.getpid()) == begun:
        sum(range(100_000))
    assert processor.seconds_of(2**22 + 1) == 0
    assert os.getpid() in processor.with_descendants(os.getpid())
