"""The means of the gateway tests: a real gateway and a real worker over a real Valkey; only the model is scripted."""

from __future__ import annotations

import array
import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from serving.contracts.accounting import Spent
from serving.contracts.errors import DomainError
from serving.contracts.ids import PoolName, RequestId
from serving.contracts.messages import EngineSnapshot, TokenLogprobs
from serving.contracts.sampling import GRAMMAR_FAULT, SamplingParams
from serving.engine.plan import StepPlan, StepResult
from serving.gateway.core import Gateway
from serving.gateway.generation import Generation
from serving.gateway.observer import Ended
from serving.gateway.stream import GenerationStream
from serving.gateway.text.tokenizer import TextModel
from serving.worker.lifecycle import EngineWorker

POOL = PoolName("default")


class ScriptedRunner:
    """Emits for each request the tokens scripted under its seed, then EOS; knows nothing of weights."""

    block_size = 16
    max_model_len = 1024

    def __init__(self, *, eos_token_id: int, num_blocks: int = 64, step_seconds: float = 0.002) -> None:
        self.eos_token_ids = frozenset({eos_token_id})
        self.num_blocks = num_blocks
        self.step_seconds = step_seconds
        self.scripts: dict[int, list[int]] = {}
        self.failing_seeds: set[int] = set()
        self.num_generated = 0
        self.makes_none = False
        """Whether it forgets embeddings."""
        self.held: tuple[int, threading.Event] | None = None
        """Index of a token that is not computed before the event is set."""

    def run(self, plan: StepPlan) -> StepResult:
        time.sleep(self.step_seconds)
        if self.held is not None and any(chunk.sample_index == self.held[0] for chunk in plan.chunks):
            self.held[1].wait()
        token_ids: list[list[int]] = []
        errors: dict[int, str] = {}
        for index, chunk in enumerate(plan.chunks):
            if chunk.samples and chunk.params.seed in self.failing_seeds and chunk.sample_index >= 2:
                fault = "the logits are not numbers" if chunk.params.grammar is None else f"{GRAMMAR_FAULT}: too vague"
                errors[index] = fault
                token_ids.append([])
                continue
            token_ids.append([self._next(chunk.params.seed, chunk.sample_index)] if chunk.samples else [])
        self.num_generated += sum(map(len, token_ids))
        embedding = {index: chunk for index, chunk in enumerate(plan.chunks) if chunk.embeds}
        seen = {index: [*(chunk.hidden_sum or ()), *chunk.token_ids] for index, chunk in embedding.items()}
        ended = {index for index, chunk in embedding.items() if chunk.ends_embedding}
        return StepResult(
            token_ids,
            errors=errors,
            logprobs={
                index: [logprob_of(token_id) for token_id in token_ids[index]]
                for index, chunk in enumerate(plan.chunks)
                if chunk.params.num_logprobs is not None and token_ids[index]
            },
            prompt_logprobs={
                index: [logprob_of(token_id) for token_id in chunk.context[chunk.start + 1 : chunk.end + 1]]
                for index, chunk in enumerate(plan.chunks)
                if chunk.params.num_prompt_logprobs is not None and chunk.sample_index == 0
            },
            hidden_sums={index: token_ids for index, token_ids in seen.items() if index not in ended},
            embeddings={} if self.makes_none else {index: embedding_of(seen[index]) for index in ended},
        )

    def _next(self, seed: int, index: int) -> int:
        script = self.scripts[seed]
        return script[index] if index < len(script) else next(iter(self.eos_token_ids))


def embedding_of(prompt_ids: Sequence[int]) -> bytes:
    """What the scripted runner makes of a prompt: its tokens, as numbers."""
    return array.array("f", prompt_ids).tobytes()


def logprob_of(token_id: int) -> TokenLogprobs:
    """What the scripted runner says of a token: a number of its own, and that the token before it was likelier."""
    return TokenLogprobs(-token_id / 1000, [token_id - 1], [-0.5])


@dataclasses.dataclass
class RecordingObserver:
    """Keeps what the gateway told of its requests."""

    calls: list[tuple[str, dict[str, Any]]] = dataclasses.field(default_factory=list)

    def submitted(self, pool: PoolName) -> None:
        self.calls.append(("submitted", {}))

    def scheduled(self, pool: PoolName, **seconds: float) -> None:
        self.calls.append(("scheduled", seconds))

    def first_token(self, pool: PoolName, **seconds: float) -> None:
        self.calls.append(("first_token", seconds))

    def token_gap(self, pool: PoolName, **seconds: float) -> None:
        self.calls.append(("token_gap", seconds))

    def ended(self, ended: Ended) -> None:
        self.calls.append(("ended", {field.name: getattr(ended, field.name) for field in dataclasses.fields(ended)}))

    def named(self, name: str) -> list[dict[str, Any]]:
        return [facts for called, facts in self.calls if called == name]

    @property
    def outcomes(self) -> list[str]:
        return [facts["outcome"] for facts in self.named("ended")]


class RecordingRoom:
    """A waiting room that only writes down what it is told."""

    def __init__(self) -> None:
        self.released: list[Any] = []
        self.renewed: list[tuple[Any, Spent]] = []
        self.closed: list[tuple[Any, Spent, bool]] = []

    async def release(self, permit: Any) -> None:
        self.released.append(permit)

    async def renew(self, held: list[tuple[Any, Spent]]) -> None:
        self.renewed.extend(held)

    async def close(self, permit: Any, spent: Spent, *, still_waits: bool) -> None:
        self.closed.append((permit, spent, still_waits))


@dataclasses.dataclass
class RunningWorker:
    """A worker on a thread of its own."""

    worker: EngineWorker
    runner: ScriptedRunner
    thread: threading.Thread

    def snapshot(self) -> EngineSnapshot:
        return self.worker.snapshot()

    def leave(self) -> None:
        self.worker.leave()
        self.thread.join(20)
        assert not self.thread.is_alive()


@dataclasses.dataclass
class Harness:
    """A started gateway and what hears of it."""

    gateway: Gateway
    observer: RecordingObserver
    room: RecordingRoom
    text_model: TextModel
    num_requests: int = 0

    def tokens(self, text: str) -> list[int]:
        """What a model would emit to say `text`."""
        return self.text_model.encode(text, add_special_tokens=False)

    def ask(
        self,
        *seeds: int,
        prompt: str = "Once upon a time",
        max_tokens: int = 200,
        stop: tuple[str, ...] = (),
        permit: Any = None,
        cache_salt: str = "",
        priority: int = 0,
        timeout_seconds: float | None = None,
        **sampling: Any,
    ) -> GenerationStream:
        """Submit a request with a choice a seed."""
        self.num_requests += 1
        generation = Generation(
            request_id=RequestId(f"req_{self.num_requests}"),
            pool=POOL,
            tenant="tests",
            prompt_ids=self.text_model.encode(prompt, add_special_tokens=False),
            params=tuple(SamplingParams(max_tokens=max_tokens, seed=seed, **sampling) for seed in seeds),
            stop=stop,
            arrived_at=time.monotonic(),
            cache_salt=cache_salt,
            priority=priority,
            timeout_seconds=timeout_seconds,
        )
        return self.gateway.generate(generation, permit=permit)


async def read(stream: GenerationStream) -> tuple[dict[int, str], dict[int, str | None]]:
    """Texts and finish reasons by choice; the stream is closed at the end."""
    texts: dict[int, str] = {}
    reasons: dict[int, str | None] = {}
    try:
        async for delta in stream:
            texts[delta.choice] = texts.get(delta.choice, "") + delta.text
            if delta.finish_reason:
                reasons[delta.choice] = delta.finish_reason
    finally:
        await stream.aclose()
    return texts, reasons


async def read_until_error(stream: GenerationStream) -> tuple[str, DomainError]:
    """The text before the stream's failure, and the failure."""
    text = ""
    with pytest.raises(DomainError) as caught:  # noqa: PT012
        async for delta in stream:
            text += delta.text
    await stream.aclose()
    return text, caught.value


async def eventually(condition: Callable[[], bool], *, within_seconds: float = 20.0) -> None:
    """Wait for a condition; fails the test when it does not come true in a time that no slow machine needs."""
    deadline = time.monotonic() + within_seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.02)
