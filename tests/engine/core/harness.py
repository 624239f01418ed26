"""An engine over a runner without a model, and what its owners hear of it, checked as it comes."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from serving.contracts.ids import OwnerId, RequestId
from serving.contracts.messages import (
    Accepted,
    Event,
    Finished,
    Refused,
    Returned,
    Scheduled,
    SequenceKey,
    Submit,
    Tokens,
)
from serving.contracts.sampling import SamplingParams
from serving.contracts.tunables import Tunables
from serving.engine.engine import Engine
from serving.engine.plan import StepPlan
from serving.engine.sequence import Sequence
from serving.engine.stats import EngineCounts
from tests.engine.core.runners import EOS, AheadCacheRunner, CacheRunner, embedding_of, next_token

OWNER = OwnerId("owner")
LOOKS_AHEAD = False
"""What a World does that is not told. The fixture `either_runner` runs a test with both."""
step_by_step = pytest.mark.parametrize("either_runner", [False], indirect=True, ids=["step by step"])
"""For what counts on each step's result being there before the next is planned."""


def params(max_tokens: int = 8, **changes: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **{"seed": 7, **changes})


def submit(
    name: str = "a",
    *,
    prompt: int | list[int] = 4,
    max_tokens: int = 8,
    choice: int = 0,
    attempt: int = 1,
    owner: OwnerId = OWNER,
    generated: list[int] | None = None,
    waited: float = 0.0,
    tenant: str = "tenant",
    cache_salt: str = "",
    stem: str = "",
    priority: int = 0,
    weight: float = 1.0,
    timeout_seconds: float | None = None,
    **sampling: Any,
) -> Submit:
    """A Submit; a number as `prompt` is a prompt of that many tokens of its own, or else the beginning of `stem`."""
    if isinstance(prompt, int):
        prompt = [1 + zlib.crc32(f"{stem or name}.{i}".encode()) % 1000 for i in range(prompt)]
    return Submit(
        key=SequenceKey(RequestId(name), choice),
        attempt=attempt,
        owner_id=owner,
        tenant=tenant,
        cache_salt=cache_salt,
        prompt_ids=prompt,
        params=params(max_tokens, **sampling),
        generated_ids=generated or [],
        waited_seconds=waited,
        priority=priority,
        weight=weight,
        timeout_seconds=timeout_seconds,
    )


def run_alone(request: Submit, *, vocab_size: int = 40) -> tuple[list[int], str]:
    """All generated tokens of `request` and the reason it ends, by the rules alone, without an engine."""
    generated = list(request.generated_ids)
    if request.params.embeds:
        return generated, "stop"
    ends = set(request.params.stop_token_ids) | (set() if request.params.ignore_eos else {EOS})
    while True:
        if generated and generated[-1] in ends and len(generated) >= request.params.min_tokens:
            return generated, "stop"
        if len(generated) >= request.params.max_tokens:
            return generated, "length"
        context = [*request.prompt_ids, *generated]
        generated.append(
            next_token(context, seed=request.params.seed, sample_index=len(generated), vocab_size=vocab_size)
        )


def _start_of(sequence: Sequence) -> tuple[int, int]:
    """What tells one start of a sequence from others."""
    return sequence.serial, sequence.num_preemptions


class Ledger:
    """Owns what each key's owner heard, and checks it as it comes."""

    def __init__(self) -> None:
        self.submitted: dict[SequenceKey, Submit] = {}
        self.tokens: dict[SequenceKey, list[int]] = {}
        self.endings: dict[SequenceKey, Event] = {}
        self.accepted: set[SequenceKey] = set()
        self.started: set[SequenceKey] = set()

    def expect(self, request: Submit) -> None:
        """Note a Submit that supersedes whatever came under its key."""
        self.submitted[request.key] = request
        self.tokens[request.key] = list(request.generated_ids)
        self.endings.pop(request.key, None)
        self.accepted.discard(request.key)
        self.started.discard(request.key)

    def hear(self, owner_id: OwnerId, event: Event) -> None:
        request = self.submitted[event.key]
        assert owner_id == request.owner_id
        if event.attempt < request.attempt:
            return  # An older attempt: its owner has moved on.
        assert event.attempt == request.attempt
        assert event.key not in self.endings, f"{event} came after the end"
        match event:
            case Accepted():
                self.accepted.add(event.key)
            case Scheduled():
                assert event.key in self.accepted
                assert event.key not in self.started, "it was scheduled for the first time twice"
                assert event.age_seconds >= 0
                self.started.add(event.key)
            case Tokens():
                tokens = self.tokens[event.key]
                assert event.key in self.started
                assert event.token_ids
                assert event.start_index == len(tokens)
                assert (event.timings is not None) == (len(tokens) == len(request.generated_ids))
                tokens.extend(event.token_ids)
                _check_logprobs(request, event)
            case Finished():
                assert event.num_generated == len(self.tokens[event.key])
                embeds = request.params.embeds and event.reason == "stop"
                assert event.embedding == (embedding_of(request.prompt_ids) if embeds else None)
                assert event.key in self.started or not embeds
                self.endings[event.key] = event
            case Refused():
                assert self.tokens[event.key] == request.generated_ids
                siblings = {key for key in self.started if key.request_id == event.key.request_id}
                assert event.code != "queue_timeout" or siblings <= self.endings.keys(), "half an answer was given"
                self.endings[event.key] = event
            case Returned():
                self.endings[event.key] = event

    @property
    def open_keys(self) -> list[SequenceKey]:
        return [key for key in self.submitted if key not in self.endings]


def _check_logprobs(request: Submit, event: Tokens) -> None:
    """Whoever asks, and nobody else, hears of each token, and of the prompt with the very first."""
    told, asked = event.logprobs, request.params.num_logprobs is not None
    assert (None if told is None else [entry.top_ids[0] for entry in told]) == (event.token_ids if asked else None)
    told, asked = event.prompt_logprobs, request.params.num_prompt_logprobs is not None and event.start_index == 0
    expected = request.prompt_ids[1:] if asked else None
    assert (None if told is None else [entry.top_ids[0] for entry in told]) == expected


class World:
    """Owns an engine, its clock and the ledger of what it said."""

    def __init__(
        self, *, tunables: dict[str, Any] | None = None, looks_ahead: bool | None = None, **runner: Any
    ) -> None:
        self.now = 1000.0
        self.looks_ahead = LOOKS_AHEAD if looks_ahead is None else looks_ahead
        self.runner = AheadCacheRunner(**runner) if self.looks_ahead else CacheRunner(**runner)
        self.tunables = Tunables().changed({"kv_watermark_ratio": 0, **(tunables or {})})
        self.engine = Engine(self.runner, tunables=self.tunables, clock=lambda: self.now)
        self.ledger = Ledger()
        self._version = 0
        self._begun_before: set[tuple[int, int]] = set()
        self._num_new_long = 0
        self.runner.before_each_run = self._look_at_plan

    def submit(self, *requests: Submit) -> None:
        for request in requests:
            self.ledger.expect(request)
            self.engine.submit(request)

    def abort(self, name: str, *choices: int, attempt: int = 1000) -> None:
        """Abort choices of a request (the first, where none is named), up to an attempt."""
        for choice in choices or (0,):
            self.engine.abort(SequenceKey(RequestId(name), choice), attempt=attempt)

    def retune(self, **changes: Any) -> None:
        self.tunables = self.tunables.changed(changes)
        self._begun_before = {_start_of(sequence) for sequence in self._running}
        self._version += 1
        self.engine.retune(self._version, self.tunables)

    def step(self, count: int = 1) -> list[Event]:
        """Step, and check everything that holds after every step."""
        heard: list[Event] = []
        for _ in range(count):
            before, num_plans = self.engine.counts(), len(self.runner.plans)
            events = self.engine.step()
            for owner_id, event in events:
                self.ledger.hear(owner_id, event)
                heard.append(event)
            self.engine.check_invariants()
            if len(self.runner.plans) > num_plans:
                self._check_plan(self.runner.plans[-1], before)
        return heard

    def run(self, *, max_steps: int = 5000) -> int:
        """Step until nothing lives, the clock going on to the next wake-up where nothing can run; the steps taken."""
        for taken in range(max_steps):
            if not self.engine.has_work:
                return taken
            wakeup = self.engine.next_wakeup()
            assert wakeup is not None, "work is left but the engine sleeps for ever"
            self.now = max(self.now, wakeup)
            self.step()
        raise AssertionError(f"still at work after {max_steps} steps: {self.engine.counts()}")

    def counts(self) -> EngineCounts:
        return self.engine.counts()

    @property
    def plan(self) -> StepPlan:
        """The last plan."""
        return self.runner.plans[-1]

    def members(self) -> dict[str, int]:
        """Tokens of the last plan by request."""
        return {chunk.key.request_id: len(chunk.token_ids) for chunk in self.plan.chunks}

    def tokens(self, name: str, choice: int = 0) -> list[int]:
        return self.ledger.tokens[SequenceKey(RequestId(name), choice)]

    def ending(self, name: str, choice: int = 0) -> Event:
        return self.ledger.endings[SequenceKey(RequestId(name), choice)]

    def reason(self, name: str, choice: int = 0) -> str:
        """Why it finished, or the code with which it was refused."""
        ending = self.ending(name, choice)
        if isinstance(ending, Finished):
            return ending.reason
        return ending.code if isinstance(ending, Refused) else "returned"

    def check_ended(self) -> None:
        """Everything ended, once each, as it would have alone, and no block is held."""
        assert self.ledger.open_keys == []
        for key, ending in self.ledger.endings.items():
            self.check_tokens(key)
            if isinstance(ending, Finished) and ending.reason in {"stop", "length"}:
                expected = run_alone(self.ledger.submitted[key], vocab_size=self.runner.vocab_size)
                assert (self.ledger.tokens[key], ending.reason) == expected
        counts = self.counts()
        assert counts.kv_blocks_free + counts.kv_blocks_cached == counts.kv_blocks_total
        assert counts.num_running == counts.num_waiting == counts.num_waiting_tokens == counts.kv_blocks_used == 0

    def check_tokens(self, key: SequenceKey) -> None:
        """What was heard so far is how the text alone begins."""
        heard = self.ledger.tokens[key]
        expected, _ = run_alone(self.ledger.submitted[key], vocab_size=self.runner.vocab_size)
        assert heard == expected[: len(heard)]

    @property
    def _running(self) -> list[Sequence]:
        return self.engine._scheduler._roster.running

    def _look_at_plan(self) -> None:
        self._count_long()
        if self.looks_ahead:
            self.engine.check_invariants()  # while two plans are in flight: after the step, one of them has landed

    def _count_long(self) -> None:
        """How many long ones are in prefill of those that started since the tunables last changed."""
        most = self.tunables.long_prompt_tokens
        long = [s for s in self._running if s.is_prefilling and s.prefill_end - s.prefill_start > most]
        self._num_new_long = sum(_start_of(sequence) not in self._begun_before for sequence in long)

    def _check_plan(self, plan: StepPlan, before: EngineCounts) -> None:
        assert 0 < plan.num_tokens <= self.tunables.max_batch_tokens
        assert len({chunk.key for chunk in plan.chunks}) == len(plan.chunks)
        assert sum(chunk.num_rows for chunk in plan.chunks) == plan.num_tokens
        for chunk in plan.chunks:
            assert len(chunk.token_ids) > 0
            assert len(chunk.block_table) * self.runner.block_size >= chunk.start + chunk.num_rows
            if chunk.is_prefill:
                assert len(chunk.token_ids) <= self.tunables.max_prefill_chunk
        assert self.tunables.mode == "static" or self._num_new_long <= self.tunables.max_long_prefills
        after = self.counts()
        assert after.num_running <= max(self.tunables.max_running, before.num_running)
        assert after.kv_blocks_used + after.kv_blocks_free + after.kv_blocks_cached == after.kv_blocks_total
        limit = max(1, int(after.kv_blocks_total * self.tunables.kv_limit_ratio + 1e-9))
        if after.num_running > 1:
            assert after.kv_blocks_used <= max(limit, before.kv_blocks_used)
