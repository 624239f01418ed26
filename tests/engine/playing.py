"""A whole engine that is told of requests at random moments: what each is answered, to the bit."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from serving.contracts.ids import OwnerId, RequestId
from serving.contracts.messages import (
    Accepted,
    Event,
    Finished,
    Scheduled,
    SequenceKey,
    Submit,
    TokenLogprobs,
    Tokens,
)
from serving.contracts.tunables import Tunables
from serving.engine.engine import Engine
from serving.engine.kv_cache import block_bytes
from serving.engine.model_runner import ModelRunner
from serving.engine.models.config import read_config
from serving.engine.plan import PlannedChunk, StepPlan
from serving.engine.sampling.sampler import Sampler, Sampling
from serving.engine.stats import EngineCounts
from serving.engine.transfers import Download

PLENTY: Mapping[str, Any] = {
    "max_running": 64,
    "max_batch_tokens": 1024,
    "max_prefill_chunk": 1024,
    "prefix_caching": "off",
}
"""Tunables that let everyone in at once, whole prompts at a time."""
_STEP_SECONDS = 0.01
_BETWEEN_SUBMITS = (0, 0, 1, 1, 2, 4)
"""How many requests come before a step."""
RETUNED: Mapping[str, Sequence[Any]] = {
    "mode": ("continuous", "continuous", "continuous", "static"),
    "batch_window_ms": (0.0, 0.0, 30.0, 200.0),
    "max_running": (1, 3, 8, 16, 64),
    "max_batch_tokens": (16, 40, 128, 512),
    "max_prefill_chunk": (1, 5, 16, 31, 64, 512),
    "prefill_share": (0.0, 0.3, 0.5, 1.0),
    "long_prompt_tokens": (10, 100, 1024),
    "max_long_prefills": (1, 2, 8),
    "long_prompt_pool": ("", "bulk"),
    "order": ("fcfs", "priority", "fair"),
    "max_queue_requests": (1, 256),
    "max_queue_tokens": (1, 262_144),
    "max_queue_wait_ms": (600_000.0, 3_600_000.0),
    "urgent_queue_ratio": (0.0, 0.5),
    "slo_ttft_ms": (1.0, 10_000.0),
    "slo_itl_ms": (1.0, 200.0),
    "early_reject": ("off", "on"),
    "kv_limit_ratio": (1.0, 0.3, 0.1, 0.05),
    "kv_watermark_ratio": (0.0, 0.02, 0.5),
    "prefix_caching": ("on", "on", "off"),
    "speculation": ("on", "on", "off"),
    "max_draft_tokens": (1, 4, 16),
}
"""What an operator may set while requests run; none is refused for it."""


@dataclasses.dataclass(slots=True)
class Answer:
    """What one sequence was told, and a checksum of the logits behind each token."""

    token_ids: list[int] = dataclasses.field(default_factory=list)
    checksums: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[TokenLogprobs] = dataclasses.field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] | None = None
    reason: str = ""

    def after(self, num_tokens: int) -> Answer:
        """What is told to an attempt that begins after so many tokens."""
        if num_tokens == 0:
            return self
        rest = [listed[num_tokens:] for listed in (self.token_ids, self.checksums, self.logprobs)]
        return Answer(*rest, prompt_logprobs=None, reason=self.reason)  # type: ignore[arg-type]


Answers = dict[SequenceKey, Answer]


class Playhouse:
    """Owns a runner and what its sampler was given; plays requests on fresh engines over it, on the test's thread."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.largest_company = 0
        """Most sequences that a step had since this was last set to 0."""
        self._checksums: dict[tuple[SequenceKey, int], int] = {}

    def note(self, logits: torch.Tensor, chunks: Sequence[PlannedChunk]) -> None:
        """Remember what is about to be sampled from."""
        for row, chunk in zip(logits.numpy(), chunks, strict=True):
            self._checksums[chunk.key, chunk.sample_index] = zlib.crc32(np.ascontiguousarray(row))

    def play(
        self,
        requests: Sequence[Sequence[Submit]],
        tunables: Mapping[str, Any],
        *,
        num_passes: int = 1,
        retuned: Mapping[str, Sequence[Any]] | None = None,
        seed: int = 0,
    ) -> tuple[list[Answers], EngineCounts]:
        """The answers of each pass over all of `requests`, and the engine's state after the last.

        Before each step a few requests come, all choices of one together, and now and then some tunables of `retuned`
        change; a pass begins when the one before has ended.
        """
        play = _Play(self, Tunables().changed({"max_queue_wait_ms": 3_600_000, "kv_watermark_ratio": 0.0, **tunables}))
        chance = random.Random(seed)
        passes = []
        for number in range(num_passes):
            self._checksums.clear()
            passes.append(play.run([_renamed(request, number) for request in requests], chance, retuned or {}))
        return passes, play.engine.counts()

    def checksums_of(self, key: SequenceKey, indices: range) -> list[int]:
        """Of the logits behind a sequence's tokens at these indices."""
        return [self._checksums[key, index] for index in indices]


class _Play:
    """Owns one engine and its clock."""

    def __init__(self, house: Playhouse, tunables: Tunables) -> None:
        self._house = house
        self._now = 0.0
        self.engine = Engine(_Watched(house), tunables=tunables, clock=lambda: self._now)

    def run(
        self, requests: Sequence[Sequence[Submit]], chance: random.Random, retuned: Mapping[str, Sequence[Any]]
    ) -> Answers:
        """Answers by the keys as they were before the pass renamed them."""
        to_come = list(requests)
        started_at = {submit.key: len(submit.generated_ids) for request in requests for submit in request}
        answers = {key: Answer() for key in started_at}
        while to_come or self.engine.has_work:
            count = chance.choice(_BETWEEN_SUBMITS)
            for submit in (submit for request in to_come[:count] for submit in request):
                self.engine.submit(submit)
            del to_come[:count]
            if retuned and chance.random() < 0.3:
                self._retune(chance, retuned)
            for _, event in self._step():
                _hear(answers[event.key], event, started_at[event.key])
        for key, answer in answers.items():
            begin = started_at[key]
            answer.checksums = self._house.checksums_of(key, range(begin, begin + len(answer.token_ids)))
        return {SequenceKey(RequestId(key.request_id.split("/")[0]), key.choice): answers[key] for key in answers}

    def _step(self) -> list[tuple[OwnerId, Event]]:
        self._now = max(self._now + _STEP_SECONDS, self.engine.next_wakeup() or 0.0)
        events = self.engine.step()
        self.engine.check_invariants()
        return events

    def _retune(self, chance: random.Random, retuned: Mapping[str, Sequence[Any]]) -> None:
        names = chance.sample(sorted(retuned), chance.randint(1, len(retuned)))
        changes = {name: chance.choice(retuned[name]) for name in names}
        self.engine.retune(self.engine.tunables_version + 1, self.engine.tunables.changed(changes))


class _Watched:
    """Owns nothing: the house's runner, which counts company."""

    def __init__(self, house: Playhouse) -> None:
        self._house = house
        runner = house.runner
        self.num_blocks, self.block_size = runner.num_blocks, runner.block_size
        self.max_model_len, self.eos_token_ids = runner.max_model_len, runner.eos_token_ids

    def run(self, plan: StepPlan) -> Any:
        self._house.largest_company = max(self._house.largest_company, len(plan.chunks))
        return self._house.runner.run(plan)


def _hear(answer: Answer, event: Event, started_at: int) -> None:
    assert not answer.reason, f"{event} came after the end"
    match event:
        case Accepted() | Scheduled():
            pass
        case Tokens():
            assert event.start_index == started_at + len(answer.token_ids)
            answer.token_ids += event.token_ids
            answer.logprobs += event.logprobs or []
            if event.prompt_logprobs is not None:
                assert answer.prompt_logprobs is None
                answer.prompt_logprobs = event.prompt_logprobs
        case Finished():
            assert event.reason in {"stop", "length"}, event
            assert event.num_generated == started_at + len(answer.token_ids)
            answer.reason = event.reason
        case _:
            raise AssertionError(event)


def _renamed(request: Sequence[Submit], number: int) -> list[Submit]:
    """The request as one of its own in pass `number`."""
    name = RequestId(f"{request[0].key.request_id}/{number}")
    return [msgspec.structs.replace(submit, key=SequenceKey(name, submit.key.choice)) for submit in request]


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """Requests, and what each is told `alone`: its whole prompt in one step, nothing cached."""

    house: Playhouse
    requests: list[list[Submit]]
    alone: Answers

    @staticmethod
    def of(house: Playhouse, requests: list[list[Submit]]) -> Subject:
        alone: Answers = {}
        for submit in (submit for request in requests for submit in request):
            alone |= house.play([[submit]], PLENTY)[0][0]
        return Subject(house, requests, alone)

    def check(self, tunables: Mapping[str, Any], **options: Any) -> EngineCounts:
        """Play all requests; each is answered as alone, in every pass."""
        self.house.largest_company = 0
        passes, counts = self.house.play(self.requests, tunables, **options)
        for answers in passes:
            _assert_equal(answers, self.alone)
        assert counts.kv_blocks_used == 0
        return counts

    def check_resumed(self, tunables: Mapping[str, Any], *, seed: int = 0) -> None:
        """Play all requests as attempts that begin after some of the tokens; each is answered with the rest."""
        chance = random.Random(seed)
        expected: Answers = {}

        def resumed(submit: Submit) -> Submit:
            answer = self.alone[submit.key]
            num_delivered = chance.randrange(len(answer.token_ids))
            expected[submit.key] = answer.after(num_delivered)
            return msgspec.structs.replace(submit, attempt=2, generated_ids=answer.token_ids[:num_delivered])

        requests = [[resumed(submit) for submit in request] for request in self.requests]
        _assert_equal(self.house.play(requests, tunables)[0][0], expected)


def _assert_equal(answers: Answers, expected: Answers) -> None:
    assert answers.keys() == expected.keys()
    for key, answer in answers.items():
        assert answer == expected[key], key


def runner_of(
    folder: Path,
    *,
    num_blocks: int,
    backend: str,
    kernels_folder: Path,
    dtype: str = "bfloat16",
    num_threads: int = 0,
) -> ModelRunner:
    """A runner with a KV cache of `num_blocks` blocks. `num_threads` as `ModelRunner` takes it."""
    num_bytes = num_blocks * block_bytes(read_config(folder), getattr(torch, dtype))
    options: dict[str, Any] = {"backend": backend, "kernels_folder": kernels_folder, "dtype": dtype}
    options["num_threads"] = num_threads
    runner = ModelRunner(folder, kv_cache_bytes=num_bytes, **options)
    assert runner.backend == backend
    return runner


@contextlib.contextmanager
def playhouse(runner: ModelRunner) -> Iterator[Playhouse]:
    """A playhouse that sees what the runner's sampler is given."""
    house = Playhouse(runner)
    begin: Callable[..., Sampling] = Sampler.begin

    def noting(sampler: Sampler, logits: torch.Tensor, chunks: Sequence[PlannedChunk], download: Download) -> Sampling:
        house.note(logits, chunks)
        return begin(sampler, logits, chunks, download)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sampler, "begin", noting)
        yield house


@contextlib.contextmanager
def house_of(folder: Path, *, num_threads: int, **options: Any) -> Iterator[Playhouse]:
    """A playhouse of its own runner (see `runner_of`), while which PyTorch too has `num_threads`."""
    before = torch.get_num_threads()
    try:
        with playhouse(runner_of(folder, num_threads=num_threads, **options)) as house:
            yield house
    finally:
        torch.set_num_threads(before)
