"""A prompt's embedding comes whole, once, and with no token; whatever happens to the engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from serving.contracts.accounting import Spent
from serving.contracts.errors import ContextLengthExceeded, EngineFailure
from serving.contracts.ids import RequestId
from serving.contracts.messages import EngineTimings, Event, Finished, FinishReason, Scheduled, SequenceKey, encode
from serving.gateway.generation import ChoiceDelta
from serving.gateway.stream import GenerationStream
from serving.worker.publisher import Publisher, StepEvents
from tests.gateway.harness import Harness, RunningWorker, embedding_of, eventually, read_until_error

StartWorker = Callable[..., RunningWorker]
StartGateway = Callable[..., Any]
PROMPT = "Once upon a time 東"


@pytest.fixture
async def harness(start_worker: StartWorker, start_gateway: StartGateway) -> tuple[Harness, RunningWorker]:
    running = start_worker()
    harness = await start_gateway()
    await eventually(lambda: bool(harness.gateway.pools()[0].has_engines))
    return harness, running


def ask(gateway: Harness, prompt: str, **options: Any) -> GenerationStream:
    return gateway.ask(0, prompt=prompt, max_tokens=0, embeds=True, **options)


async def deltas_of(stream: GenerationStream) -> list[ChoiceDelta]:
    deltas = [delta async for delta in stream]
    await stream.aclose()
    return deltas


async def test_an_embedding_is_all_that_is_said(harness: tuple[Harness, RunningWorker]) -> None:
    gateway, running = harness
    stream = ask(gateway, PROMPT, permit="a permit")
    await stream.started()
    embedding = embedding_of(gateway.tokens(PROMPT))
    assert await deltas_of(stream) == [ChoiceDelta(0, "", 0, "stop", embedding=embedding)]
    num_tokens = len(gateway.tokens(PROMPT))
    usage = stream.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.num_cached_tokens) == (num_tokens, 0, 0)
    assert usage.timings is not None
    assert usage.timings.decode_seconds == 0
    assert running.runner.num_generated == 0
    await eventually(lambda: len(gateway.room.closed) == 1)
    # Whether the permit had left the waiting room before is a matter of moments.
    assert gateway.room.closed[0][:2] == ("a permit", Spent(num_tokens, 0))


async def test_it_is_observed_as_a_request_without_tokens(harness: tuple[Harness, RunningWorker]) -> None:
    gateway, _ = harness
    await deltas_of(ask(gateway, PROMPT))
    names = [name for name, _ in gateway.observer.calls]
    assert names == ["submitted", "scheduled", "ended"]
    (facts,) = gateway.observer.named("ended")
    assert (facts["outcome"], facts["was_scheduled"], facts["completion_tokens"]) == ("finished:stop", True, 0)


async def test_embeddings_and_texts_run_side_by_side(harness: tuple[Harness, RunningWorker]) -> None:
    gateway, running = harness
    running.runner.scripts[1] = gateway.tokens("a text of its own")
    text, vectors = gateway.ask(1), [ask(gateway, f"{PROMPT} {index}") for index in range(8)]
    assert "".join(delta.text for delta in await deltas_of(text)) == "a text of its own"
    for index, stream in enumerate(vectors):
        (delta,) = await deltas_of(stream)
        assert delta.embedding == embedding_of(gateway.tokens(f"{PROMPT} {index}"))


async def test_another_engine_computes_the_whole_of_it_when_its_own_leaves(
    start_worker: StartWorker, start_gateway: StartGateway
) -> None:
    first, gateway = start_worker(step_seconds=0.3), await start_gateway()
    await eventually(lambda: bool(gateway.gateway.pools()[0].has_engines))
    stream = ask(gateway, prompt := "word " * 900)
    assert len(gateway.tokens(prompt)) > first.snapshot().block_size * 40
    await eventually(lambda: len(gateway.observer.named("scheduled")) == 1)
    await asyncio.to_thread(first.leave)
    start_worker()
    (delta,) = await deltas_of(stream)
    assert delta.embedding == embedding_of(gateway.tokens(prompt))
    assert gateway.observer.outcomes == ["finished:stop"]


async def test_who_goes_away_while_it_is_computed_leaves_nothing_behind(
    harness: tuple[Harness, RunningWorker],
) -> None:
    gateway, running = harness
    running.runner.step_seconds = 0.3
    stream = ask(gateway, "word " * 900)
    await stream.started()
    await stream.aclose()
    assert gateway.observer.outcomes == ["aborted"]
    await eventually(lambda: running.snapshot().num_running == running.snapshot().kv_blocks_used == 0)


async def test_an_engine_that_makes_none_is_an_error_and_not_an_empty_vector(
    harness: tuple[Harness, RunningWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it notices itself, or says that all is well."""
    gateway, running = harness
    running.runner.makes_none = True
    _, error = await read_until_error(ask(gateway, PROMPT))
    assert isinstance(error, EngineFailure)
    running.runner.makes_none = False
    with monkeypatch.context() as patch:
        _let_say(patch, lambda event: msgspec.structs.replace(event, embedding=None) if _is_end(event) else event)
        _, error = await read_until_error(ask(gateway, PROMPT))
        assert isinstance(error, EngineFailure)
    assert len(await deltas_of(ask(gateway, PROMPT))) == 1


async def test_an_embedding_whose_beginning_was_not_told_counts_as_scheduled(
    harness: tuple[Harness, RunningWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, _ = harness
    _let_say(monkeypatch, lambda event: None if isinstance(event, Scheduled) else event)
    assert len(await deltas_of(ask(gateway, PROMPT, permit="a permit"))) == 1
    assert [name for name, _ in gateway.observer.calls] == ["submitted", "scheduled", "ended"]
    await eventually(lambda: len(gateway.room.closed) == 1)
    assert gateway.room.closed[0][1] == Spent(len(gateway.tokens(PROMPT)), 0)


def _let_say(monkeypatch: pytest.MonkeyPatch, change: Callable[[Event], Event | None]) -> None:
    """Let workers tell what `change` makes of an event, or nothing of it."""
    publish = Publisher.publish

    def publish_changed(self: Publisher, events: StepEvents) -> None:
        changed = [(owner_id, change(event)) for owner_id, event in events]
        publish(self, [(owner_id, event) for owner_id, event in changed if event is not None])

    monkeypatch.setattr(Publisher, "publish", publish_changed)


def _is_end(event: Event) -> bool:
    return isinstance(event, Finished)


def test_readers_of_before_ignore_what_they_do_not_know() -> None:
    """And a reader of now takes what they wrote: so the version of the schema stays."""

    class FinishedBefore(msgspec.Struct, frozen=True, tag="f", array_like=True):
        key: SequenceKey
        attempt: int
        reason: FinishReason
        num_generated: int
        timings: EngineTimings
        message: str = ""

    key = SequenceKey(RequestId("a"), 0)
    before = FinishedBefore(key, 1, "stop", 0, EngineTimings(), "")
    now = Finished(key, 1, "stop", 0, EngineTimings(), "", embedding_of([1]))
    assert msgspec.msgpack.decode(encode(now), type=FinishedBefore) == before
    assert msgspec.msgpack.decode(encode(before), type=Finished) == msgspec.structs.replace(now, embedding=None)
    assert msgspec.msgpack.decode(encode(now), type=Finished) == now


async def test_a_prompt_longer_than_the_context_is_refused_by_that_name(
    harness: tuple[Harness, RunningWorker],
) -> None:
    gateway, _ = harness
    _, error = await read_until_error(ask(gateway, "word " * 1100))
    assert isinstance(error, ContextLengthExceeded)
