"""A request's way through gateway, transport, worker and scheduler, with scripted tokens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from serving.admission.prediction import Predictor
from serving.contracts import keys
from serving.contracts.errors import ContextLengthExceeded, EngineFailure, NoEngine, QueueTimeout, Unavailable
from serving.contracts.messages import AnnouncedTunables, encode
from serving.contracts.tunables import Tunables
from tests.gateway.harness import POOL, Harness, RunningWorker, eventually, read, read_until_error
from tests.servers import running_valkey

StartWorker = Callable[..., RunningWorker]
StartGateway = Callable[..., Any]

LONG_TEXT = "It was the best of times, it was the worst of times — ďábelské 👨‍👩‍👧 🌶️ 東京. " * 4


@pytest.fixture
async def harness(start_worker: StartWorker, start_gateway: StartGateway) -> tuple[Harness, RunningWorker]:
    running = start_worker()
    harness = await start_gateway()
    await eventually(lambda: bool(harness.gateway.pools()[0].has_engines))
    return harness, running


def is_idle(running: RunningWorker) -> bool:
    snapshot = running.snapshot()
    return snapshot.num_running == snapshot.num_waiting == snapshot.kv_blocks_used == 0


async def test_text_of_a_stream_equals_the_reference_decode(harness: tuple[Harness, RunningWorker]) -> None:
    gateway, running = harness
    running.runner.scripts[1] = gateway.tokens(LONG_TEXT)
    texts, reasons = await read(gateway.ask(1))
    assert texts == {0: LONG_TEXT}
    assert reasons == {0: "stop"}
    assert gateway.observer.outcomes == ["finished:stop"]


async def test_every_interval_is_observed_once_a_token(harness: tuple[Harness, RunningWorker]) -> None:
    gateway, running = harness
    running.runner.scripts[1] = gateway.tokens("one two three four five six")
    stream = gateway.ask(1, max_tokens=5)
    _, reasons = await read(stream)
    assert reasons == {0: "length"}
    assert stream.usage.completion_tokens == 5
    observed = gateway.observer
    assert len(observed.named("scheduled")) == len(observed.named("first_token")) == 1
    assert len(observed.named("token_gap")) == 4
    engines = {facts["engine_id"] for name, facts in observed.calls if name != "submitted"}
    assert engines == {running.snapshot().engine_id}
    assert observed.named("scheduled")[0]["queue_seconds"] <= observed.named("first_token")[0]["ttft_seconds"]


async def test_stop_string_over_several_tokens_never_reaches_the_client(harness: tuple[Harness, RunningWorker]) -> None:
    gateway, running = harness
    pieces = ("Thought ok\nOb", "serv", "ation:", " x", " y" * 50)
    running.runner.scripts[1] = [token for piece in pieces for token in gateway.tokens(piece)]
    texts, reasons = await read(gateway.ask(1, stop=("Observation:",)))
    assert texts == {0: "Thought ok\n"}
    assert reasons == {0: "stop"}
    await eventually(lambda: is_idle(running))
    assert running.runner.num_generated < len(running.runner.scripts[1]) + 1


async def test_held_back_text_is_sent_when_the_model_ends_by_itself(harness: tuple[Harness, RunningWorker]) -> None:
    gateway, running = harness
    running.runner.scripts[1] = gateway.tokens("UNO DUE TRE")
    texts, _ = await read(gateway.ask(1, stop=("TRE\nZZZZ",)))
    assert texts == {0: "UNO DUE TRE"}


async def test_a_stop_string_ends_its_own_choice_only(harness: tuple[Harness, RunningWorker]) -> None:
    gateway, running = harness
    running.runner.scripts[1] = gateway.tokens("one, five, six" + ", seven" * 20)
    running.runner.scripts[2] = gateway.tokens("one, two, three" + ", four" * 20)
    texts, reasons = await read(gateway.ask(1, 2, stop=("five",)))
    assert texts == {0: "one, ", 1: "one, two, three" + ", four" * 20}
    assert reasons == {0: "stop", 1: "stop"}


async def test_usage_tells_what_was_cached_of_the_prompt(harness: tuple[Harness, RunningWorker]) -> None:
    gateway, running = harness
    prompt = "a long time ago in a land of many words " * 4
    running.runner.scripts = {seed: gateway.tokens("one, two") for seed in range(4)}
    running.runner.step_seconds = 0.05  # however slow this process is, no choice ends before the last has come
    num_full = len(gateway.tokens(prompt)) // 16 * 16
    assert num_full > 0
    found = []
    for salt in ("", "", "pepper"):
        # The first choice computes the prompt; that the others share it with the first is no hit.
        stream = gateway.ask(0, 1, 2, 3, prompt=prompt, cache_salt=salt)
        await read(stream)
        found.append(stream.usage.num_cached_tokens)
    assert found == [0, num_full, 0]
    assert running.snapshot().prefix_hit_tokens_total == num_full


async def test_closing_a_stream_frees_its_place_and_its_blocks(harness: tuple[Harness, RunningWorker]) -> None:
    gateway, running = harness
    running.runner.scripts[1] = gateway.tokens("word " * 600)
    running.runner.step_seconds = 0.05  # however slow this process is, the stream is not at its end when it is closed
    stream = gateway.ask(1, max_tokens=600)
    await anext(stream)
    await eventually(lambda: running.snapshot().num_running == 1)  # a token may be here before the snapshot is taken
    await stream.aclose()
    await stream.aclose()
    await eventually(lambda: is_idle(running))
    generated = running.runner.num_generated
    await asyncio.sleep(0.2)
    assert running.runner.num_generated == generated
    assert gateway.observer.outcomes == ["aborted"]
    assert gateway.gateway.num_in_flight == 0


async def test_closing_at_once_after_asking_leaves_nothing_behind(harness: tuple[Harness, RunningWorker]) -> None:
    gateway, running = harness
    running.runner.scripts[1] = gateway.tokens("word " * 600)
    for _ in range(20):
        await gateway.ask(1, max_tokens=600).aclose()
    running.runner.scripts[2] = gateway.tokens("fine")
    texts, _ = await read(gateway.ask(2))
    assert texts == {0: "fine"}
    await eventually(lambda: is_idle(running))
    assert gateway.observer.outcomes == ["aborted"] * 20 + ["finished:stop"]


async def test_hundreds_of_streams_may_come_and_go_at_once(harness: tuple[Harness, RunningWorker]) -> None:
    gateway, running = harness
    running.runner.step_seconds = 0.02
    running.runner.scripts[1] = gateway.tokens("word " * 600)
    streams = [gateway.ask(1, max_tokens=600) for _ in range(300)]
    await eventually(lambda: running.snapshot().num_running + running.snapshot().num_waiting == 300)
    for stream in streams:
        await stream.aclose()
    await eventually(lambda: is_idle(running))
    assert gateway.observer.outcomes == ["aborted"] * 300


async def test_engine_listens_again_after_whatever_stopped_it(
    harness: tuple[Harness, RunningWorker], valkey: str
) -> None:
    gateway, running = harness
    running.runner.scripts[1] = gateway.tokens("fine")
    redis = Redis.from_url(valkey)
    redis.delete(keys.inbox(POOL))
    redis.set(keys.inbox(POOL), "no stream")
    await asyncio.sleep(1.0)
    redis.delete(keys.inbox(POOL))
    texts, _ = await read(gateway.ask(1))
    assert texts == {0: "fine"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_an_engine_whose_every_step_fails_leaves(start_worker: StartWorker, start_gateway: StartGateway) -> None:
    broken, gateway = start_worker(), await start_gateway()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broken.runner, "scripts", None)
        for _ in range(3):
            _, error = await read_until_error(gateway.ask(1))
            assert isinstance(error, EngineFailure)
    await asyncio.to_thread(broken.thread.join, 20)
    assert not broken.thread.is_alive()


async def test_a_request_that_runs_is_past_the_queues_longest_wait(
    start_worker: StartWorker, start_gateway: StartGateway, valkey: str
) -> None:
    tunables = Tunables(max_queue_wait_ms=300, max_prefill_chunk=1)
    Redis.from_url(valkey).set(keys.announced_tunables(POOL), encode(AnnouncedTunables(3, tunables)))
    running, gateway = start_worker(step_seconds=0.05), await start_gateway()
    running.runner.scripts[1] = gateway.tokens("fine")
    stream = gateway.ask(1, prompt="a long prompt " * 10)
    await stream.started()
    assert stream.usage.completion_tokens == 0
    texts, _ = await read(stream)
    assert texts == {0: "fine"}


async def test_permit_goes_back_when_the_request_is_first_scheduled(harness: tuple[Harness, RunningWorker]) -> None:
    gateway, running = harness
    running.runner.scripts[1] = gateway.tokens("word " * 300)
    stream = gateway.ask(1, max_tokens=300, permit="a permit")
    await stream.started()
    await eventually(lambda: gateway.room.released == ["a permit"])
    await stream.aclose()
    await eventually(lambda: is_idle(running))
    assert gateway.room.released == ["a permit"]


async def test_what_can_never_fit_is_refused_and_the_next_request_runs(harness: tuple[Harness, RunningWorker]) -> None:
    gateway, running = harness
    running.runner.scripts[1] = gateway.tokens("fine")
    stream = gateway.ask(1, max_tokens=5000)
    with pytest.raises(ContextLengthExceeded):
        await stream.started()
    await stream.aclose()
    texts, _ = await read(gateway.ask(1))
    assert texts == {0: "fine"}
    assert gateway.observer.outcomes == ["refused:context_length_exceeded", "finished:stop"]


async def test_a_failing_request_disturbs_no_other(harness: tuple[Harness, RunningWorker]) -> None:
    gateway, running = harness
    running.runner.scripts[1] = gateway.tokens(LONG_TEXT)
    running.runner.scripts[2] = gateway.tokens(LONG_TEXT)
    running.runner.failing_seeds.add(2)
    (text, error), (texts, _) = await asyncio.gather(read_until_error(gateway.ask(2)), read(gateway.ask(1)))
    assert isinstance(error, EngineFailure)
    assert LONG_TEXT.startswith(text)
    assert texts == {0: LONG_TEXT}


async def test_request_that_waits_too_long_is_refused(
    start_worker: StartWorker, start_gateway: StartGateway, valkey: str
) -> None:
    tunables = Tunables(max_running=1, max_queue_wait_ms=300)
    Redis.from_url(valkey).set(keys.announced_tunables(POOL), encode(AnnouncedTunables(3, tunables)))
    running, gateway = start_worker(), await start_gateway()
    running.runner.scripts[1] = gateway.tokens("word " * 900)
    first = gateway.ask(1, max_tokens=900)
    await first.started()
    second = gateway.ask(1)
    with pytest.raises(QueueTimeout):
        await second.started()
    await second.aclose()
    await first.aclose()
    assert gateway.observer.outcomes == ["refused:queue_timeout", "aborted"]


async def test_stream_goes_on_where_it_stopped_when_its_engine_leaves(
    start_worker: StartWorker, start_gateway: StartGateway
) -> None:
    first, gateway = start_worker(), await start_gateway()
    script = gateway.tokens(LONG_TEXT)
    first.runner.scripts[1] = script
    stream = gateway.ask(1)
    delta = await anext(stream)
    await asyncio.to_thread(first.leave)
    second = start_worker()
    second.runner.scripts[1] = script
    texts, reasons = await read(stream)
    assert delta.text + texts[0] == LONG_TEXT
    assert reasons == {0: "stop"}
    assert stream.usage.completion_tokens == len(script) + 1
    assert second.runner.num_generated <= len(script)


@pytest.mark.waits
async def test_two_engines_share_what_waits(
    start_worker: StartWorker, start_gateway: StartGateway, valkey: str
) -> None:
    tunables = Tunables(max_running=2)
    Redis.from_url(valkey).set(keys.announced_tunables(POOL), encode(AnnouncedTunables(2, tunables)))
    first, gateway = start_worker(step_seconds=0.01), await start_gateway()
    script = gateway.tokens("word " * 150)
    first.runner.scripts[1] = script
    streams = [gateway.ask(1) for _ in range(12)]
    await eventually(lambda: first.snapshot().num_waiting == 10)
    second = start_worker(step_seconds=0.01)
    second.runner.scripts[1] = script
    texts = await asyncio.gather(*(read(stream) for stream in streams))
    assert all(text == {0: "word " * 150} for text, _ in texts)
    assert first.runner.num_generated + second.runner.num_generated == 12 * (len(script) + 1)
    assert second.runner.num_generated >= 3 * len(script)


async def test_draining_engine_finishes_what_runs_and_takes_nothing_new(
    start_worker: StartWorker, start_gateway: StartGateway
) -> None:
    first, gateway = start_worker(), await start_gateway()
    script = gateway.tokens(LONG_TEXT)
    first.runner.scripts[1] = script
    stream = gateway.ask(1)
    await stream.started()
    first.worker.drain()
    await eventually(lambda: not gateway.gateway.pools()[0].has_engines)
    texts, _ = await read(stream)
    assert texts == {0: LONG_TEXT}
    await asyncio.to_thread(first.thread.join, 20)
    assert not first.thread.is_alive()


@pytest.mark.waits
async def test_streams_survive_a_redis_that_forgets_everything(
    harness: tuple[Harness, RunningWorker], valkey: str
) -> None:
    gateway, running = harness
    text = LONG_TEXT * 3
    running.runner.scripts[1] = gateway.tokens(text)
    stream = gateway.ask(1, max_tokens=900)
    delta = await anext(stream)
    Redis.from_url(valkey).flushall()
    texts, reasons = await read(stream)
    assert delta.text + texts[0] == text
    assert reasons == {0: "stop"}
    texts, _ = await read(gateway.ask(1, max_tokens=900))
    assert texts == {0: text}


@pytest.mark.waits
async def test_streams_end_with_an_error_when_redis_stays_away(
    start_worker: StartWorker, start_gateway: StartGateway
) -> None:
    with contextlib.ExitStack() as running_redis:
        url = running_redis.enter_context(running_valkey())
        running, gateway = start_worker(url=url, step_seconds=0.05), await start_gateway(url=url, failover_seconds=1.0)
        running.runner.scripts[1] = gateway.tokens("word " * 600)
        stream = gateway.ask(1, max_tokens=600)
        await stream.started()
        await asyncio.to_thread(running_redis.close)
        _, error = await read_until_error(stream)
        assert isinstance(error, Unavailable)
        assert gateway.observer.outcomes == ["failed:unavailable"]
        with pytest.raises(Unavailable):
            await gateway.ask(1).started()


async def test_who_lost_its_engine_for_good_is_told_when_one_is_expected(
    start_worker: StartWorker, start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Predictor, "retry_after_seconds", lambda _self, _pool: 17.0)
    running, gateway = start_worker(step_seconds=0.05), await start_gateway(failover_seconds=0.2)
    running.runner.scripts[1] = gateway.tokens("word " * 900)
    stream = gateway.ask(1, max_tokens=900)
    await stream.started()
    await asyncio.to_thread(running.leave)
    _, error = await read_until_error(stream)
    assert isinstance(error, NoEngine)
    assert (error.code, error.retry_after_seconds) == ("unavailable", 17)
    assert gateway.observer.outcomes == ["failed:unavailable"]


async def test_stopping_the_gateway_ends_its_streams_with_an_error(harness: tuple[Harness, RunningWorker]) -> None:
    gateway, running = harness
    running.runner.scripts[1] = gateway.tokens("word " * 600)
    stream = gateway.ask(1, max_tokens=600)
    await stream.started()
    await gateway.gateway.stop()
    _, error = await read_until_error(stream)
    assert isinstance(error, Unavailable)
    await eventually(lambda: is_idle(running))


@pytest.mark.waits
async def test_engine_aborts_what_a_dead_owner_left(harness: tuple[Harness, RunningWorker], valkey: str) -> None:
    gateway, running = harness
    running.runner.step_seconds = 0.05
    running.runner.scripts[1] = gateway.tokens("word " * 900)
    stream = gateway.ask(1, max_tokens=900)
    await stream.started()
    for task in gateway.gateway._loops:
        task.cancel()
    Redis.from_url(valkey).delete(keys.owner_alive("owner"))
    await eventually(lambda: is_idle(running), within_seconds=30)


async def test_tunables_change_between_steps_and_are_reported(
    harness: tuple[Harness, RunningWorker], valkey: str
) -> None:
    from serving.contracts.messages import Retune

    _, running = harness
    redis = Redis.from_url(valkey)
    retune = Retune(7, Tunables(max_running=3))
    redis.xadd(keys.control(running.worker.engine_id), {keys.FIELD: encode(retune)})
    await eventually(lambda: running.snapshot().tunables_version == 7)
    stale = Retune(6, Tunables(max_running=9))
    redis.xadd(keys.control(running.worker.engine_id), {keys.FIELD: encode(stale)})
    redis.xadd(keys.control(running.worker.engine_id), {keys.FIELD: encode(Retune(8, Tunables()))})
    await eventually(lambda: running.snapshot().tunables_version == 8)
