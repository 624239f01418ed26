"""What the gateway tells of a request that ended: everything that the log of requests says."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.errors import EngineFailure
from serving.contracts.ids import RequestId
from serving.contracts.messages import AnnouncedTunables, Retune, Span, encode
from serving.contracts.sampling import SamplingParams
from serving.contracts.tunables import Tunables
from serving.gateway.generation import Generation, Origin
from serving.gateway.observer import Ended
from tests.gateway.harness import POOL, Harness, RunningWorker, eventually, read, read_until_error

ORIGIN = Origin(
    endpoint="chat", is_streamed=True, tenant_id=7, tenant_name="acme", key_prefix="0123456789ab", keeps_text=True
)
Start = Callable[..., Any]


async def begin(start_worker: Start, start_gateway: Start) -> tuple[RunningWorker, Harness]:
    running, harness = start_worker(), await start_gateway()
    await eventually(lambda: bool(harness.gateway.pools()[0].has_engines))
    return running, harness


def told(harness: Harness) -> Ended:
    """Of the one request that ended."""
    (facts,) = harness.observer.named("ended")
    return Ended(**facts)


def tokens_of(ended: Ended, kind: str) -> int:
    return sum(span.num_tokens for span in ended.spans if span.kind == kind)


async def test_a_request_that_finished_is_told_whole(start_worker: Start, start_gateway: Start) -> None:
    running, harness = await begin(start_worker, start_gateway)
    text = "one, two, three, four, five, six"
    running.runner.scripts[1] = harness.tokens(text)
    await read(harness.ask(1, priority=3, timeout_seconds=30.0))
    ended = told(harness)
    num_tokens = len(harness.tokens(text)) + 1  # and EOS
    assert (ended.request_id, ended.pool, ended.outcome) == ("req_1", POOL, "finished:stop")
    assert (ended.completion_tokens, ended.num_choices, ended.num_attempts) == (num_tokens, 1, 1)
    assert ended.was_scheduled
    assert ended.has_finished
    assert ended.queue_seconds is not None
    assert ended.ttft_seconds is not None
    assert ended.itl_seconds is not None
    assert 0 <= ended.queue_seconds <= ended.ttft_seconds <= ended.e2e_seconds
    gaps = [facts["itl_seconds"] for facts in harness.observer.named("token_gap")]
    assert ended.itl_seconds == pytest.approx(sum(gaps) / len(gaps))
    assert ended.params is not None
    assert (ended.params.seed, ended.priority, ended.timeout_seconds) == (1, 3, 30.0)
    assert ended.engine == running.snapshot().name
    assert ended.meets_ttft
    assert ended.meets_itl
    assert tokens_of(ended, "prefill") == ended.prompt_tokens - ended.cached_tokens
    assert tokens_of(ended, "decode") == num_tokens - 1
    # The account begins where the wait ends, and is over before the request.
    assert 0 < ended.spans[0].offset_ms <= 1000 * ended.queue_seconds + 0.02
    assert ended.spans[-1].offset_ms + ended.spans[-1].duration_ms <= 1000 * ended.e2e_seconds + 0.02
    assert ended.texts is None


async def test_what_a_canary_ran_tells_of_the_canarys_version(
    start_worker: Start, start_gateway: Start, valkey: str
) -> None:
    running, harness = await begin(start_worker, start_gateway)
    running.runner.scripts[1] = harness.tokens("one, two")
    async with Redis.from_url(valkey) as redis:
        await redis.set(keys.announced_tunables(POOL), encode(AnnouncedTunables(8, Tunables())))
        await redis.xadd(keys.control(running.worker.engine_id), {keys.FIELD: encode(Retune(9, Tunables()))})
        await eventually(lambda: running.snapshot().tunables_version == 9)
        await redis.set(keys.heartbeat(running.worker.engine_id), encode(running.snapshot()), px=3000)
    await harness.gateway.refresh_pools()
    assert harness.gateway.pools()[0].tunables_version == 8
    await read(harness.ask(1))
    assert told(harness).tunables_version == 9


async def test_what_a_stop_string_ended_is_told_by_the_gateway_from_the_first_token_on(
    start_worker: Start, start_gateway: Start
) -> None:
    running, harness = await begin(start_worker, start_gateway)
    running.runner.scripts[1] = harness.tokens("one, two, three, four, five, six")
    await read(harness.ask(1, stop=("five",)))
    ended = told(harness)
    assert (ended.outcome, ended.num_stop_strings) == ("finished:stop", 1)
    assert [span.kind for span in ended.spans] == ["prefill", "decode"]
    assert tokens_of(ended, "decode") == ended.completion_tokens - 1
    last = ended.spans[-1]
    assert last.batch_size == 0
    assert ended.ttft_seconds is not None
    assert 1000 * ended.ttft_seconds < last.offset_ms + last.duration_ms <= 1000 * ended.e2e_seconds + 0.02


async def test_what_its_client_left_is_told_as_far_as_it_came(start_worker: Start, start_gateway: Start) -> None:
    running, harness = await begin(start_worker, start_gateway)
    running.runner.scripts[1] = harness.tokens("one, two, three, four, five, six, seven, eight, nine, ten")
    stream = harness.ask(1)
    await anext(stream)
    await stream.aclose()
    ended = told(harness)
    assert ended.outcome == "aborted"
    assert not ended.has_finished
    assert not ended.meets_ttft
    assert ended.ttft_seconds is not None
    assert 0 < ended.completion_tokens < 20
    assert ended.spans[0].kind == "prefill"


async def test_what_no_engine_took_has_waited_and_nothing_else(start_worker: Start, start_gateway: Start) -> None:
    _, harness = await begin(start_worker, start_gateway)
    _, error = await read_until_error(harness.ask(1, prompt="word " * 9000))
    ended = told(harness)
    assert ended.outcome == f"refused:{error.code}"
    assert (ended.queue_seconds, ended.ttft_seconds, ended.itl_seconds, ended.spans) == (None, None, None, ())
    assert (ended.completion_tokens, ended.cached_tokens, ended.num_attempts) == (0, 0, 1)


async def test_what_the_engine_failed_on_says_so(start_worker: Start, start_gateway: Start) -> None:
    running, harness = await begin(start_worker, start_gateway)
    running.runner.scripts[1] = harness.tokens("one, two, three")
    running.runner.failing_seeds.add(1)
    _, error = await read_until_error(harness.ask(1))
    assert isinstance(error, EngineFailure)
    ended = told(harness)
    assert (ended.outcome, ended.completion_tokens) == (f"failed:{error.code}", 2)
    assert ended.engine == running.snapshot().name


async def test_an_embedding_has_a_prefill_and_no_first_token(start_worker: Start, start_gateway: Start) -> None:
    _, harness = await begin(start_worker, start_gateway)
    await read(harness.ask(0, max_tokens=0, embeds=True))
    ended = told(harness)
    assert (ended.outcome, ended.completion_tokens, ended.ttft_seconds) == ("finished:stop", 0, None)
    assert tokens_of(ended, "prefill") == ended.prompt_tokens
    assert ended.meets_ttft
    assert ended.meets_itl


async def test_several_choices_are_one_request_with_the_account_of_the_first(
    start_worker: Start, start_gateway: Start
) -> None:
    running, harness = await begin(start_worker, start_gateway)
    running.runner.scripts[1] = harness.tokens("one, two, three, four")
    running.runner.scripts[2] = harness.tokens("one")
    await read(harness.ask(1, 2))
    ended = told(harness)
    assert ended.num_choices == 2
    assert tokens_of(ended, "decode") == len(harness.tokens("one, two, three, four"))
    assert ended.completion_tokens == tokens_of(ended, "decode") + 1 + len(harness.tokens("one")) + 1


async def test_texts_are_kept_where_the_origin_says_so(start_worker: Start, start_gateway: Start) -> None:
    running, harness = await begin(start_worker, start_gateway)
    for seed in (1, 2):
        running.runner.scripts[seed] = harness.tokens(f"answer {seed}, the whole of it")
    stream = harness.gateway.generate(generation(harness, "<|im_start|>user\nA question", seeds=(1, 2)))
    texts, _ = await read(stream)
    ended = told(harness)
    assert ended.origin == ORIGIN
    assert ended.texts is not None
    assert ended.texts.read_prompt() == "<|im_start|>user\nA question"
    assert ended.texts.outputs == (texts[0], texts[1])


def generation(harness: Harness, prompt: str, *, seeds: tuple[int, ...]) -> Generation:
    return Generation(
        request_id=RequestId("kept"),
        pool=POOL,
        tenant="tenant:7",
        prompt_ids=harness.tokens(prompt),
        params=tuple(SamplingParams(max_tokens=50, seed=seed) for seed in seeds),
        stop=(),
        arrived_at=time.monotonic(),
        origin=ORIGIN,
    )


def test_a_span_is_small_on_its_way() -> None:
    assert len(encode(Span("decode", 123_456.78, 1234.56, 64, 12))) <= 32


async def test_a_choice_that_a_stop_string_ended_is_told_to_its_own_end(
    start_worker: Start, start_gateway: Start
) -> None:
    running, harness = await begin(start_worker, start_gateway)
    running.runner.scripts[1] = harness.tokens("one, two, three")
    running.runner.scripts[2] = harness.tokens("a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w")
    await read(harness.ask(1, 2, stop=("two",)))
    ended = told(harness)
    last = ended.spans[-1]
    assert last.kind == "decode"
    assert last.offset_ms + last.duration_ms < 1000 * ended.e2e_seconds - 1000 * running.runner.step_seconds
